"""Decode throughput of our CPU engine against the Hugging Face `generate` and vLLM on CPU.

One tiny Qwen2 (0.6 M parameters: hidden 128, 4 layers, 4 heads, 2 key/value heads, vocabulary 64), float32,
prompts of 6 tokens, sampling at temperature 1, end tokens ignored. Three workloads for 64 and for 256
sequences at once:
  equal        as many requests as slots, 64 new tokens each; long tail    four times as many requests,
  lengths 1 to 64 with mean 16 (exponential, cut): `generate` runs them in batches
               of as many as slots and counts the tokens asked for; ours and vLLM refill;
  one batch    the first quarter of those: nothing to refill from.
Ours reports log-probabilities with every token; the peers are not asked to. Repetitions take turns.

Share of the limit: the time of the bare matrix products of all our steps (`products.py`), at the batch sizes and lengths
that they had, on the same threads, over our time.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import tempfile
from contextlib import ExitStack
from pathlib import Path

import numpy as np
from peers import BENCH, VLLM_OVERRIDES, VLLM_REQUIREMENTS, PeerError, Worker, environment
from table import Check, Spread, at_least, report, spread

NEW_TOKENS = 64
PROMPT_TOKENS = 6
VOCABULARY = 64
Workload = dict[str, list]


def write_model(folder: Path) -> None:
    """The benchmark's model: the `tiny` preset's shape with 4 layers and a vocabulary of 64."""
    from safetensors.torch import save_file

    from rl_api.run import TinyModelSpec
    from rl_trainer.model.config import parse_config
    from rl_trainer.model.decoder import Decoder
    from rl_trainer.model.presets import tiny_config

    config = {**tiny_config(TinyModelSpec(layers=4)), "vocab_size": VOCABULARY}
    model = Decoder(parse_config(config))
    model.initialize(0.05, seed=0)
    folder.mkdir(parents=True)
    (folder / "config.json").write_text(json.dumps(config))
    save_file(model.hf_state_dict(), folder / "model.safetensors", metadata={"format": "pt"})


def workloads(slots: int) -> dict[str, Workload]:
    generator = np.random.default_rng(slots)
    prompts = generator.integers(2, VOCABULARY, (4 * slots, PROMPT_TOKENS)).tolist()
    draws = generator.exponential(1.0, 4 * slots)
    scale = NEW_TOKENS / 4
    for _ in range(50):  # cut at both ends, the mean is not the scale's: find the scale that gives a quarter
        lengths = np.clip(np.rint(draws * scale), 1, NEW_TOKENS).astype(int)
        scale *= NEW_TOKENS / 4 / lengths.mean()
    return {
        "equal": {"prompts": prompts[:slots], "lengths": [NEW_TOKENS] * slots},
        "long tail": {"prompts": prompts, "lengths": lengths.tolist()},
        "one batch": {"prompts": prompts[:slots], "lengths": lengths[:slots].tolist()},
    }


def start(folder: Path, slots: int, threads: int, vllm: bool) -> dict[str, Worker]:
    """One waiting process per engine; they are idle while another one works."""
    arguments = (str(folder), str(slots), str(threads))
    workers = {
        "ours": Worker(
            f"engine-ours-{slots}", sys.executable, BENCH / "worker_engine.py", *arguments, freeze=True
        ),
        "generate": Worker(
            f"engine-generate-{slots}", sys.executable, BENCH / "peer_generate.py", *arguments, freeze=True
        ),
    }
    if vllm:
        python = environment("vllm", VLLM_REQUIREMENTS, VLLM_OVERRIDES)
        cores = sorted(os.sched_getaffinity(0))[:threads]
        env = {
            "VLLM_CPU_KVCACHE_SPACE": "1",
            "VLLM_CPU_OMP_THREADS_BIND": ",".join(map(str, cores)),
            "VLLM_LOGGING_LEVEL": "WARNING",
            "VLLM_NO_USAGE_STATS": "1",
        }
        workers["vllm"] = Worker(
            f"engine-vllm-{slots}",
            python,
            BENCH / "peer_vllm.py",
            str(folder),
            str(slots),
            "eager",
            env=env,
            freeze=True,
        )
    return workers


def measure(
    workers: dict[str, Worker], workload: Workload, repetitions: int
) -> tuple[dict[str, Spread], float]:
    """Tokens per second of each engine, and our share of the limit; the first round warms up and is not counted."""
    rates: dict[str, list[float]] = {name: [] for name in workers}
    bare: list[float] = []
    for repetition in range(repetitions + 1):
        for name, worker in workers.items():
            answer = worker({**workload, "products": 1 if repetition else 0})
            if answer["lengths"] != workload["lengths"]:
                raise PeerError(f"{name}: made other lengths than asked for")
            if repetition:
                rates[name].append(sum(workload["lengths"]) / answer["seconds"])
                bare += answer.get("products", [])
    found = {name: spread(values) for name, values in rates.items()}
    limit = sum(workload["lengths"]) / spread(bare).median
    return found, found["ours"].median / limit


def main() -> bool:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--repetitions", type=int, default=7)
    parser.add_argument("--sequences", type=int, nargs="+", default=[64, 256])
    parser.add_argument("--threads", type=int, default=2, help="torch threads of every engine")
    parser.add_argument(
        "--without-vllm", action="store_true", help="leave out the peer that needs a 5 GB environment"
    )
    options = parser.parse_args()

    rows: list[list[object]] = []
    checks: list[Check] = []
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch) / "model"
        write_model(folder)
        for slots in options.sequences:
            with ExitStack() as stack:
                workers = start(folder, slots, options.threads, not options.without_vllm)
                for worker in workers.values():
                    stack.enter_context(worker)
                for kind, workload in workloads(slots).items():
                    found, share = measure(workers, workload, options.repetitions)
                    ours, generate = found["ours"].median, found["generate"].median
                    row: list[object] = [
                        kind,
                        slots,
                        found["ours"],
                        share,
                        found["generate"],
                        ours / generate,
                    ]
                    if "vllm" in found:
                        row += [found["vllm"], ours / found["vllm"].median]
                    rows.append(row)
                    wanted = {"equal": 1.5, "long tail": 3.0}.get(kind)
                    if wanted is not None:
                        checks.append(
                            at_least(f"{kind}, {slots} sequences, ours / generate", ours / generate, wanted)
                        )
                        if "vllm" in found:
                            ratio = ours / found["vllm"].median
                            checks.append(at_least(f"{kind}, {slots} sequences, ours / vLLM", ratio, 1.0))
    columns = ["lengths", "sequences", "ours, tok/s", "share of the limit", "generate, tok/s", "ratio"]
    if not options.without_vllm:
        columns += ["vLLM on CPU, tok/s", "ratio"]
    meta = {"threads": options.threads, "repetitions": options.repetitions, "what": __doc__}
    return report("engine", columns, rows, meta, checks)


if __name__ == "__main__":
    sys.exit(not main())
