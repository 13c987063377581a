"""Answers of `rltrain generate` per second against Ray Data with transformers: batches of rows through `model.generate`.

A small random Qwen2 with a character tokenizer, sampled at temperature 1: the end token is as likely as any other
character, so lengths are geometric, mean about 100, with a tail that is cut at --max-new-tokens. Both get the same
prompts in the same file, start a Ray of their own, load the model, and write JSONL, on one thread; seconds are those of
the whole command. The peer is what Ray Data's guide to batch inference shows: read_json, map_batches over an actor that
pads a batch and calls `generate`, write_json; its batch is as large as our engine's slots. They take turns. Each draws
its own answers, so tokens are counted on both sides.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from peers import BENCH, PeerError
from table import at_least, report, spread

SECONDS = 3600.0


def write_inputs(folder: Path, prompts: int) -> None:
    """Model and prompts."""
    from rl_api.run import TinyModelSpec
    from rl_trainer.model.presets import write_tiny

    write_tiny(folder / "model", TinyModelSpec(layers=4, max_positions=2048), seed=0)
    draw = random.Random(0)
    with (folder / "prompts.jsonl").open("w") as file:
        for number in range(prompts):
            text = "".join(draw.choices("0123456789+-*", k=draw.randint(4, 24))) + "="
            file.write(json.dumps({"id": number, "prompt": text}) + "\n")


def measure(name: str, command: list[str], folder: Path, output: Path, prompts: int) -> tuple[float, int]:
    """Seconds of a command, and the tokens that it wrote.

    Raises:
        PeerError: it failed, or did not answer every prompt once.
    """
    environment = {key: value for key, value in os.environ.items() if not key.startswith("RAY_")}
    start = time.perf_counter()
    done = subprocess.run(
        command, cwd=folder, env=environment, capture_output=True, text=True, timeout=SECONDS, check=False
    )
    seconds = time.perf_counter() - start
    if done.returncode:
        raise PeerError(f"{name}: ended with {done.returncode}: {done.stderr[-2000:]}")
    rows = [
        json.loads(line) for file in output.glob("*.json*") if file.name[0] != "_" for line in file.open()
    ]
    if sorted(row["id"] for row in rows) != list(range(prompts)):
        raise PeerError(f"{name}: answered {len(rows)} rows, not every one of {prompts} once")
    return seconds, sum(row["completion_tokens"] for row in rows)


def main() -> bool:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--prompts", type=int, default=5000)
    parser.add_argument("--repetitions", type=int, default=3)
    parser.add_argument("--slots", type=int, default=64, help="of our engine, and rows of the peer's batch")
    parser.add_argument("--max-new-tokens", type=int, default=1024)
    options = parser.parse_args()

    seconds: dict[str, list[float]] = {"ours": [], "peer": []}
    rates: dict[str, list[float]] = {"ours": [], "peer": []}
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch)
        write_inputs(folder, options.prompts)
        length, slots = str(options.max_new_tokens), str(options.slots)
        for repetition in range(options.repetitions):
            outputs = {name: folder / f"{name}-{repetition}" for name in seconds}
            ours = [
                sys.executable,
                "-m",
                "rl_cli.main",
                "generate",
                "--model",
                "model",
                "--input",
                "prompts.jsonl",
            ]
            ours += ["--output", str(outputs["ours"]), "--max-new-tokens", length, "--slots", slots]
            peer = [sys.executable, str(BENCH / "peer_ray_data.py"), "model", "prompts.jsonl"]
            peer += [str(outputs["peer"]), length, slots]
            for name, command in (("ours", ours), ("peer", peer)):
                took, tokens = measure(name, command, folder, outputs[name], options.prompts)
                seconds[name].append(took)
                rates[name].append(tokens / took)
    ratio = spread(rates["ours"]).median / spread(rates["peer"]).median
    columns = ["prompts", "ours, s", "Ray Data + transformers, s", "ours, tok/s", "theirs, tok/s", "ratio"]
    row = [options.prompts, *map(spread, (*seconds.values(), *rates.values())), ratio]
    checks = [at_least(f"{options.prompts} prompts, ours / Ray Data with transformers", ratio, 3.0)]
    meta = {**vars(options), "what": __doc__}
    return report("generate", columns, [row], meta, checks)


if __name__ == "__main__":
    sys.exit(not main())
