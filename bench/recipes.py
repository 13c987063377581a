"""Learning curves: the quickstart with every recipe, several seeds each. A table, JSON, and docs/images/recipes.png.

    python bench/recipes.py [--recipes grpo,dapo] [--seeds 1,2,3] [--steps 400]

Every run starts from the same warm start of its seed and ends as the quickstart does: solved, at a held-out score of 0.95,
or after so many steps. Runs that are there already are not repeated: runs/recipes/RECIPE-SEED.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
from pathlib import Path

import table

from rl_api.recipes import RECIPES
from rl_trainer.observe.metrics import heldout_curve

REPOSITORY = Path(__file__).resolve().parent.parent
FOLDER = REPOSITORY / "runs" / "recipes"
PICTURE = REPOSITORY / "docs" / "images" / "recipes.png"
TARGET = 0.95  # held-out score at which the task counts as solved
SOLVED = 2  # seeds of three in which a recipe must get there

Curve = list[tuple[int, float]]


def train(recipe: str, seed: int, steps: int) -> Curve:
    """Held-out score by step of one run, trained now unless it is there."""
    out = FOLDER / f"{recipe}-{seed}"
    if (out / "summary.json").exists():
        return heldout_curve(out / "metrics.jsonl")
    settings = {
        "algorithm.name": recipe,
        "seed": seed,
        "stop.maxSteps": steps,
        "stop.targetReward": TARGET,
        "stop.maxDuration": "30m",
    }
    command = [str(Path(sys.executable).with_name("rltrain")), "run", "examples/quickstart.yaml"]
    command += ["--out", str(out), "--overwrite"]
    for name, value in settings.items():
        command += ["--set", f"{name}={value}"]
    done = subprocess.run(command, cwd=REPOSITORY, capture_output=True, text=True, timeout=2400)
    if done.returncode:
        raise SystemExit(f"{recipe}, seed {seed}: {done.stderr.strip()}")
    return heldout_curve(out / "metrics.jsonl")


def plot(curves: dict[str, list[Curve]]) -> None:
    """One panel per recipe, a line per seed."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    columns = 4
    rows = -(-len(curves) // columns)
    figure, axes = pyplot.subplots(
        rows, columns, figsize=(2.6 * columns, 2.2 * rows), sharex=True, sharey=True, layout="constrained"
    )
    for place in axes.flat[len(curves) :]:
        place.set_axis_off()
    for place, (recipe, seeds) in zip(axes.flat, curves.items(), strict=False):
        for curve in seeds:
            place.plot(*zip(*curve, strict=True), linewidth=1.3)
        place.set_title(recipe, fontsize=10)
        place.grid(alpha=0.25)
        place.set_ylim(0, 1.02)
    figure.supxlabel("step", fontsize=9)
    figure.supylabel("held-out exact match", fontsize=9)
    figure.savefig(PICTURE, dpi=110)
    pyplot.close(figure)


def main() -> int:
    """Train, print, plot; the exit status says whether every recipe learns."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--recipes", default=",".join(RECIPES), help="names, with commas")
    parser.add_argument("--seeds", default="1,2,3")
    parser.add_argument("--steps", type=int, default=400)
    options = parser.parse_args()
    curves: dict[str, list[Curve]] = {}
    rows, checks = [], []
    for recipe in options.recipes.split(","):
        curves[recipe] = [train(recipe, int(seed), options.steps) for seed in options.seeds.split(",")]
        starts = [curve[0][1] for curve in curves[recipe]]
        ends = [curve[-1][1] for curve in curves[recipe]]
        steps = [curve[-1][0] for curve in curves[recipe]]
        solved = [end >= TARGET for end in ends]
        rows.append(
            [
                recipe,
                ", ".join(f"{score:.2f}" for score in starts),
                ", ".join(f"{score:.2f}" for score in ends),
                ", ".join(str(step) if done else "-" for step, done in zip(steps, solved, strict=True)),
            ]
        )
        wanted = len(solved) * SOLVED / 3
        checks.append(table.at_least(f"{recipe}: seeds that solve the task", sum(solved), wanted, ""))
        print(f"{recipe}: {rows[-1][1]} -> {rows[-1][2]}; steps {rows[-1][3]}", flush=True)
    plot(curves)
    columns = ["recipe", "held-out, start", "end", f"steps to {TARGET}"]
    return 0 if table.report("recipes", columns, rows, checks=checks) else 1


if __name__ == "__main__":
    sys.exit(main())
