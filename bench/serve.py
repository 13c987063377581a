"""`rltrain serve` against vLLM on CPU behind its own OpenAI server and against plain Ray Serve with transformers.

One tiny Qwen2 (0.6 M parameters: hidden 128, 4 layers, 4 heads, 2 key/value heads, a token for each character), float32, one
thread for each engine. Closed-loop clients over HTTP, 1, 8 and 64 of them: each streams a completion of 64 tokens to a
prompt of 32, greedily, and asks again when it has ended. The model never ends by itself. One server at a time has the
machine: each is started, warmed up, measured with all loads, and stopped; all get the same prompts.

Reported are tokens/s of all clients together, time to the first token and seconds between two (medians over requests), and
for ours what a request costs that generates nothing (GET /v1/models: proxy, routing, the replica's own HTTP).
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import sys
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
from http_clients import Measured, bare, closed_loop
from openai_server import OpenAiServer, free_port
from peers import BENCH, VLLM_OVERRIDES, VLLM_REQUIREMENTS, PeerError, environment
from table import Check, Spread, at_least, at_most, report, spread

MODEL = "policy"
PROMPT, TOKENS = 32, 64
CONTEXT = 256
# Requests of each client, by how many clients there are: enough for some seconds.
REQUESTS = {1: 24, 8: 12, 64: 6}
ROUTER_SECONDS, ROUTER_REQUESTS = 0.005, 300


def write_model(folder: Path) -> None:
    """The `tiny` preset with 4 layers, and an end token that no other token ever lets win."""
    from safetensors.torch import load_file, save_file

    from rl_api.run import TinyModelSpec
    from rl_trainer.model.presets import write_tiny

    write_tiny(folder, TinyModelSpec(layers=4, max_positions=CONTEXT), seed=0)
    file = folder / "model.safetensors"
    tensors = load_file(file)
    # Tied embeddings: its logit is 0, and one of the 96 others is above that.
    tensors["model.embed_tokens.weight"][:2] = 0.0
    save_file(tensors, file, metadata={"format": "pt"})


def bodies(clients: int, requests: int, seed: int) -> list[list[dict[str, Any]]]:
    """What each client asks."""
    generator = np.random.default_rng(seed)
    letters = np.array(list("abcdefghijklmnopqrstuvwxyz0123456789 "))
    return [
        [
            {
                "model": MODEL,
                "prompt": "".join(generator.choice(letters, PROMPT)),
                "max_tokens": TOKENS,
                "temperature": 0,
                "stream": True,
                "stream_options": {"include_usage": True},
            }
            for _ in range(requests)
        ]
        for _ in range(clients)
    ]


def ours(folder: Path, port: int) -> tuple[list[str], dict[str, str]]:
    options = ["--port", str(port), "--model-name", MODEL, "--max-context", str(CONTEXT), "--queue", "512"]
    return [sys.executable, "-m", "rl_cli.main", "serve", str(folder), *options], {}


def ray_serve(folder: Path, port: int) -> tuple[list[str], dict[str, str]]:
    return [sys.executable, str(BENCH / "peer_serve.py"), str(folder), str(port)], {}


def vllm(folder: Path, port: int) -> tuple[list[str], dict[str, str]]:
    python = environment("vllm", VLLM_REQUIREMENTS, VLLM_OVERRIDES)
    core = sorted(os.sched_getaffinity(0))[-1]
    env = {
        "VLLM_CPU_KVCACHE_SPACE": "1",
        "VLLM_CPU_OMP_THREADS_BIND": str(core),
        "VLLM_LOGGING_LEVEL": "WARNING",
        "VLLM_NO_USAGE_STATS": "1",
    }
    options = [
        "--model",
        str(folder),
        "--served-model-name",
        MODEL,
        "--port",
        str(port),
        "--host",
        "127.0.0.1",
    ]
    options += ["--dtype", "float32", "--max-model-len", str(CONTEXT), "--max-num-seqs", "64"]
    options += ["--enforce-eager", "--no-enable-prefix-caching", "--disable-uvicorn-access-log"]
    return [str(python), "-m", "vllm.entrypoints.openai.api_server", *options], env


SERVERS = {"ours": ours, "Ray Serve + transformers": ray_serve, "vLLM": vllm}


def measure(server: OpenAiServer, clients: int, repetitions: int) -> tuple[Spread, list[Measured]]:
    """Tokens per second, and the repetitions; every answer must have been whole."""
    found = []
    for repetition in range(repetitions):
        load = bodies(clients, REQUESTS.get(clients, 8), seed=repetition)
        one = asyncio.run(closed_loop(server.url, load))
        odd = [answer for answer in one.answers if answer.tokens != TOKENS or answer.error]
        if odd:
            raise PeerError(
                f"{server.name}: {len(odd)} of {len(one.answers)} answers are not whole: {odd[0]}"
            )
        found.append(one)
    return spread([one.rate for one in found]), found


def milliseconds(found: list[Measured], name: str) -> float:
    return spread([one.percentile(name, 0.5) for one in found]).median * 1000


def main() -> bool:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--repetitions", type=int, default=3)
    parser.add_argument("--clients", type=int, nargs="+", default=[1, 8, 64])
    parser.add_argument("--servers", nargs="+", choices=SERVERS, default=list(SERVERS))
    options = parser.parse_args()

    rows: list[list[object]] = []
    rates: dict[tuple[str, int], float] = {}
    checks: list[Check] = []
    router = None
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch) / "model"
        write_model(folder)
        for name in options.servers:
            port = free_port()
            command, env = SERVERS[name](folder, port)
            label = "serve-" + name.split()[0].lower()
            with OpenAiServer(label, command, port, env) as server:
                for clients in options.clients:
                    asyncio.run(closed_loop(server.url, bodies(clients, 2, seed=1000)))  # warm-up
                    rate, found = measure(server, clients, options.repetitions)
                    rates[name, clients] = rate.median
                    first, between = (milliseconds(found, key) for key in ("first", "between"))
                    rows.append([name, clients, rate, first, between])
                    print(json.dumps([name, clients, rate.median, first, between]), flush=True)
                if name == "ours":
                    router = asyncio.run(bare(server.url, "/v1/models", ROUTER_REQUESTS))
    for clients in [clients for clients in options.clients if clients >= 8]:
        for peer in [name for name in options.servers if name != "ours"]:
            if ("ours", clients) in rates:
                ratio = rates["ours", clients] / rates[peer, clients]
                checks.append(at_least(f"{clients} clients, ours / {peer}", ratio, 1.0))
    if router is not None:
        checks.append(
            at_most("a request without generation, p50", router * 1000, ROUTER_SECONDS * 1000, " ms")
        )
    columns = ["server", "clients", "tok/s", "first token, ms", "between tokens, ms"]
    return report("serve", columns, rows, {"repetitions": options.repetitions, "what": __doc__}, checks)


if __name__ == "__main__":
    sys.exit(not main())
