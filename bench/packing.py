"""A training step of a model of the Hugging Face library: several sequences in a row against a row for each.

    python bench/packing.py [--hidden 256] [--layers 4] [--tokens 16384] [--repetitions 3]

Two learners of Phi-3's shape, float32, in one process, take the same batches in turn: one as it is, and one that is told
not to pack (`LibraryModel.packs`), which pads micro-batches of similar lengths. Answers have a long tail (log-normal) or
one length. Trained tokens per second, the places of all micro-batches over their tokens, how many micro-batches there are,
and by how much losses differ, at most 1e-5.
"""

from __future__ import annotations

import argparse
import random
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
import torch
from table import Check, add_out, report, spread

from rl_api import RunSpec
from rl_trainer.algorithms.denominators import LossDenominators
from rl_trainer.learner.rank import Learner, MiniBatch
from rl_trainer.model.first_fit import first_fit
from rl_trainer.trajectory import Trajectory

VOCABULARY, PROMPT, MEDIAN, LONGEST = 2048, 32, 64, 512
SEQUENCES = 64


def lengths_of(sigma: float) -> list[int]:
    """Tokens of each sequence, log-normal around a median with `sigma`."""
    generator = random.Random(0)
    drawn = (MEDIAN * generator.lognormvariate(0.0, sigma) for _ in range(SEQUENCES))
    return [min(LONGEST, PROMPT + max(4, round(one))) for one in drawn]


def batch(lengths: list[int]) -> MiniBatch:
    """Sequences of these lengths, of which all but the prompt is trained on."""
    rng = np.random.default_rng(0)
    samples = [
        Trajectory(
            rng.integers(0, VOCABULARY, length).astype(np.int32),
            np.arange(length) >= PROMPT,
            np.full(length - PROMPT, -7.6, np.float32),
            np.zeros(length - PROMPT, np.int32),
            advantage=float(rng.normal()),
        )
        for length in lengths
    ]
    return MiniBatch(samples, LossDenominators.from_lengths([length - PROMPT for length in lengths]))


def learner(folder: Path, tokens: int, packs: bool) -> Learner:
    """A learner of the folder's model."""
    spec = RunSpec.model_validate(
        {
            "model": {"source": str(folder)},
            "task": {"environment": "reasoning-gym", "name": "chain_sum"},
            "algorithm": {"name": "grpo", "learningRate": 1e-4},
            "learner": {"tokensPerMicroBatch": tokens},
            "stop": {"maxSteps": 1_000_000},
        }
    )
    made = Learner(folder, spec)
    assert made.model.packs, "Phi-3's shape packs"
    made.model.packs = packs  # type: ignore[assignment]
    made.start_reinforcement()
    return made


def cuts(one: Learner, lengths: list[int], part: MiniBatch) -> tuple[int, float]:
    """Micro-batches, and places over tokens."""
    found = one.cuts.of(part.samples, one.model)
    places = 0
    for cut in found:
        members = [lengths[index] for index in cut]
        rows = len(first_fit(members, max(members))) if one.model.packs else len(members)
        places += rows * max(members)
    return len(found), places / sum(lengths)


def save(folder: Path, options: argparse.Namespace) -> None:
    """A random model."""
    import transformers

    transformers.utils.logging.disable_progress_bar()
    config = transformers.Phi3Config(
        vocab_size=VOCABULARY,
        hidden_size=options.hidden,
        intermediate_size=options.hidden * 8 // 3,
        num_hidden_layers=options.layers,
        num_attention_heads=options.hidden // 64,
        num_key_value_heads=options.hidden // 64,
        max_position_embeddings=4096,
        pad_token_id=0,
        bos_token_id=1,
        eos_token_id=2,
    )
    transformers.AutoModelForCausalLM.from_config(config).save_pretrained(folder)


def main() -> int:
    """Measure, print the table, return the exit status."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--hidden", type=int, default=256, help="width of the model, a multiple of 64")
    parser.add_argument("--layers", type=int, default=4)
    parser.add_argument("--tokens", type=int, default=16_384, help="of a micro-batch")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--repetitions", type=int, default=3)
    add_out(parser)
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    rows: list[list[Any]] = []
    checks: list[Check] = []
    with tempfile.TemporaryDirectory() as made:
        save(Path(made) / "model", options)
        for name, sigma in (("long tail", 1.0), ("equal lengths", 0.0)):
            lengths = lengths_of(sigma)
            part = batch(lengths)
            learners = {
                packs: learner(Path(made) / "model", options.tokens, packs) for packs in (True, False)
            }
            seconds: dict[bool, list[float]] = {True: [], False: []}
            losses: dict[bool, list[float]] = {True: [], False: []}
            for _ in range(options.repetitions + 1):  # the first one is not counted
                for packs, one in learners.items():
                    start = time.perf_counter()
                    losses[packs].append(one.update([part]).metrics["loss"])
                    seconds[packs].append(time.perf_counter() - start)
            trained = sum(lengths) - PROMPT * len(lengths)
            packed, padded = (spread([trained / s for s in seconds[packs][1:]]) for packs in (True, False))
            passes, places = zip(
                *(cuts(learners[packs], lengths, part) for packs in (True, False)), strict=True
            )
            row = [
                name,
                f"{trained // len(lengths)}, {max(lengths)}",
                packed,
                padded,
                packed.median / padded.median,
            ]
            rows.append([*row, f"{passes[0]}, {passes[1]}", f"{places[0]:.2f}, {places[1]:.2f}"])
            print(*rows[-1], file=sys.stderr)
            off = max(abs(a - b) for a, b in zip(losses[True], losses[False], strict=True))
            checks.append(Check(f"{name}, losses differ by", off <= 1e-5, f"{off:.1e}", "<= 1e-05"))
    columns = ["lengths", "answers, mean and longest", "packed tok/s", "padded tok/s", "ratio"]
    columns += ["micro-batches", "places per token"]
    return 0 if report("packing", columns, rows, checks=checks, out=options.out) else 1


if __name__ == "__main__":
    sys.exit(main())
