"""The training step: tokens per second of our learner against TRL's GRPOTrainer on the same batch of mixed lengths.

Eight prompts with eight answers each, a Qwen2 of 0.6 M parameters (hidden 128, 4 layers, vocabulary 98), float32, two
threads on both sides, no KL term. A step is everything from a batch on the CPU to new weights: cutting it into passes,
forward, loss, backward, gradient clipping, AdamW. Both minimise CISPO's loss averaged over all tokens; both start from
the same folder, and the losses of their first steps are compared: if a gradient differed, the second would too.

TRL pads to the longest prompt and the longest answer, and its GRPO has no packing and no padding-free option (1.16.0). It is
measured with the whole batch in one pass and in eight (`gradient_accumulation_steps`), and the better figure counts.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from pathlib import Path

import learner_batch
from loop import TRL_REQUIREMENTS
from peers import BENCH, Worker, environment
from table import Check, Spread, at_least, report, spread

STEPS_COMPARED = 3
RATE = 1e-4
PARTS = (1, 8)


def measure(
    shape: learner_batch.Shape, mine: Worker, theirs: Worker, repetitions: int
) -> tuple[list[object], list[Check]]:
    """One row of the table, and its targets."""
    batch = learner_batch.make(shape)
    lengths = [len(one) for one in batch["completions"]]
    trained = sum(lengths)
    prompts = sum(len(one) for one in batch["prompts"])

    found = {"ours": mine({**batch, "fresh": True, "steps": STEPS_COMPARED})["losses"]}
    seconds: dict[str, list[float]] = {"ours": []}
    for parts in PARTS:
        name = f"TRL/{parts}"
        first = theirs({**batch, "parts": parts, "fresh": True, "steps": STEPS_COMPARED})
        found[name] = first["losses"]
        seconds[name] = []
        for _ in range(repetitions):
            seconds["ours"] += mine({**batch, "fresh": False, "steps": 2})["seconds"]
            seconds[name] += theirs({**batch, "parts": parts, "fresh": False, "steps": 1})["seconds"]
    difference = max(abs(a - b) for name in seconds for a, b in zip(found["ours"], found[name], strict=True))
    figures: dict[str, Spread] = {
        name: spread([trained / one for one in values]) for name, values in seconds.items()
    }
    for name, value in figures.items():
        print(f"{shape.name}: {name} {value} trained tok/s, losses {found[name]}", file=sys.stderr)
    ours = figures.pop("ours")
    best = max(figures.values(), key=lambda one: one.median)
    ratio = ours.median / best.median
    total = (trained + prompts) / trained
    row: list[object] = [
        shape.name,
        f"{trained / len(lengths):.0f}, {max(lengths)}",
        f"{prompts / len(lengths):.0f}",
        ours,
        best,
        ratio,
        ours.median * total,
        best.median * total,
        difference,
    ]
    checks = [
        Check(
            f"{shape.name}, largest difference of the loss",
            difference <= 1e-5,
            f"{difference:.1e}",
            "<= 1e-05",
        )
    ]
    if shape.wanted is not None:
        checks.append(at_least(f"{shape.name}, ours / TRL", ratio, shape.wanted))
    return row, checks


def main() -> bool:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--repetitions", type=int, default=5)
    parser.add_argument("--threads", type=int, default=2, help="torch threads of each side")
    parser.add_argument("--case", action="append", choices=[shape.name for shape in learner_batch.SHAPES])
    options = parser.parse_args()

    from rl_trainer.model.presets import DefaultTiny, write_tiny

    rows: list[list[object]] = []
    checks: list[Check] = []
    with tempfile.TemporaryDirectory(prefix="rltrain-bench-") as scratch:
        folder = Path(scratch) / "model"
        write_tiny(folder, DefaultTiny(layers=4, max_positions=learner_batch.LONGEST))
        python = environment("trl", TRL_REQUIREMENTS)
        arguments = (str(folder), str(options.threads), str(RATE))
        with (
            Worker(
                "learner-ours", sys.executable, BENCH / "worker_learner.py", *arguments, freeze=True
            ) as mine,
            Worker("learner-trl", python, BENCH / "peer_trl_step.py", *arguments, freeze=True) as theirs,
        ):
            for shape in learner_batch.SHAPES:
                if options.case and shape.name not in options.case:
                    continue
                row, more = measure(shape, mine, theirs, options.repetitions)
                rows.append(row)
                checks += more
    columns = [
        "lengths",
        "answer, mean and longest",
        "prompt, mean",
        "ours, trained tok/s",
        "TRL, trained tok/s",
        "ratio",
        "ours, all tok/s",
        "TRL, all tok/s",
        "loss, largest difference",
    ]
    meta = {"repetitions": options.repetitions, "threads": options.threads, "what": __doc__}
    return report("learner", columns, rows, meta, checks)


if __name__ == "__main__":
    sys.exit(not main())
