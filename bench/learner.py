"""The training step: tokens per second of our learner against TRL's GRPOTrainer on the same batch of mixed lengths.

Eight prompts with eight answers each, a Qwen2 of 0.6 M parameters (hidden 128, 4 layers, vocabulary 98), float32, two
threads on both sides, no KL term. A step is everything from a batch on the CPU to new weights: cutting it into passes,
forward, loss, backward, gradient clipping, AdamW. Both minimise CISPO's loss averaged over all tokens; both start from
the same folder, and the losses of their first steps are compared: if a gradient differed, the second would too.

TRL pads to the longest prompt and the longest answer, and its GRPO has no packing and no padding-free option (1.16.0). It is
measured with the whole batch in one pass and in eight (`gradient_accumulation_steps`), and the better figure counts.

The same with two ranks of a thread each, which divide the model: ours by FSDP2, and the batch as the driver does; TRL under
`accelerate launch` with FSDP2, half of the batch's groups on each rank. accelerate 1.15 takes FSDP for accelerators alone:
`peer_trl_step.py` says what is done about it. Both sum over gloo.

Share of the limit: the time of our step's bare matrix products (`products.py`), forward and backward, on the same threads,
over the time of our step; with two ranks, those of the rank whose products take longer.

The second table: memory of the log-probs of 1,024 tokens by vocabulary, forward and backward through an output head of width
64, by the learner's function and by `log_softmax(hidden @ weight.T)`: the highest resident memory above inputs and their
gradients. The third: memory of a training step of a deeper model (12 layers) with `activationCheckpointing`.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from pathlib import Path

import learner_batch
from loop import TRL_REQUIREMENTS
from peers import BENCH, Worker, environment
from table import Check, Spread, at_least, at_most, report, spread

STEPS_COMPARED = 3
RATE = 1e-4
PARTS = (1, 8)
PRODUCTS = 3  # times that products are measured after each way of the peer
# Freed memory goes back to the system at once, so that what is resident is what is in use.
RETURN_MEMORY = {"MALLOC_MMAP_THRESHOLD_": "65536", "MALLOC_TRIM_THRESHOLD_": "65536"}
HEAD_TOKENS, HEAD_WIDTH = 1024, 64
VOCABULARIES = tuple(1024 * 2**power for power in range(8))


def workers(folder: Path, threads: int, ranks: int) -> tuple[Worker, Worker]:
    """Ours and TRL's, waiting: of one process each, or of several ranks, who share the threads."""
    python = environment("trl", TRL_REQUIREMENTS)
    arguments = (str(folder), str(max(1, threads // ranks)), str(RATE))
    ours, trl = BENCH / "worker_learner.py", BENCH / "peer_trl_step.py"
    if ranks == 1:
        return (
            Worker("learner-ours", sys.executable, ours, *arguments, freeze=True),
            Worker("learner-trl", python, trl, *arguments, freeze=True),
        )
    # Ranks wait for requests in gloo, which takes no time of a processor.
    launch = "torch.distributed.run", "--standalone", "--nproc-per-node", str(ranks)
    accelerate = ["accelerate.commands.launch", "--num_processes", str(ranks), "--main_process_port", "0"]
    accelerate += ["--num_machines", "1", "--mixed_precision", "no", "--dynamo_backend", "no"]
    accelerate += ["--use_fsdp", "--fsdp_version", "2", "--fsdp_auto_wrap_policy", "TRANSFORMER_BASED_WRAP"]
    accelerate += ["--num_cpu_threads_per_process", arguments[1]]
    return (
        Worker(
            "learner-ours-ranks",
            sys.executable,
            "-m",
            *launch,
            str(ours),
            *arguments,
            env={"OMP_NUM_THREADS": "1"},
        ),
        Worker(
            "learner-trl-ranks",
            python,
            "-m",
            *accelerate,
            str(trl),
            *arguments,
            env={"ACCELERATE_USE_CPU": "true"},
        ),
    )


def measure(
    shape: learner_batch.Shape, mine: Worker, theirs: Worker, repetitions: int, name: str
) -> tuple[list[object], list[Check]]:
    """One row of the table, called `name`, and its targets."""
    batch = learner_batch.make(shape)
    lengths = [len(one) for one in batch["completions"]]
    trained = sum(lengths)
    prompts = sum(len(one) for one in batch["prompts"])

    found = {"ours": mine({**batch, "fresh": True, "steps": STEPS_COMPARED})["losses"]}
    seconds: dict[str, list[float]] = {"ours": []}
    bare: list[float] = []
    for parts in PARTS:
        way = f"TRL/{parts}"
        first = theirs({**batch, "parts": parts, "fresh": True, "steps": STEPS_COMPARED})
        found[way] = first["losses"]
        seconds[way] = []
        for _ in range(repetitions):
            answer = mine({**batch, "fresh": False, "steps": 2, "products": PRODUCTS})
            seconds["ours"] += answer["seconds"]
            bare += answer["products"]
            seconds[way] += theirs({**batch, "parts": parts, "fresh": False, "steps": 1})["seconds"]
    difference = max(abs(a - b) for way in seconds for a, b in zip(found["ours"], found[way], strict=True))
    figures: dict[str, Spread] = {
        way: spread([trained / one for one in values]) for way, values in seconds.items()
    }
    for way, value in figures.items():
        print(f"{name}: {way} {value} trained tok/s, losses {found[way]}", file=sys.stderr)
    ours = figures.pop("ours")
    best = max(figures.values(), key=lambda one: one.median)
    ratio = ours.median / best.median
    total = (trained + prompts) / trained
    share = spread(bare).median / spread(seconds["ours"]).median
    row: list[object] = [
        name,
        f"{trained / len(lengths):.0f}, {max(lengths)}",
        f"{prompts / len(lengths):.0f}",
        ours,
        best,
        ratio,
        ours.median * total,
        best.median * total,
        share,
        difference,
    ]
    checks = [
        Check(
            f"{name}, largest difference of the loss",
            difference <= 1e-5,
            f"{difference:.1e}",
            "<= 1e-05",
        )
    ]
    if shape.wanted is not None:
        checks.append(at_least(f"{name}, ours / TRL", ratio, shape.wanted))
    return row, checks


def memory() -> bool:
    """The table of memory by vocabulary."""
    rows: list[list[object]] = []
    peaks: dict[str, list[float]] = {"plain": [], "chunked": []}
    with Worker(
        "learner-head",
        sys.executable,
        BENCH / "worker_head.py",
        str(HEAD_TOKENS),
        str(HEAD_WIDTH),
        env=RETURN_MEMORY,
    ) as worker:
        for vocabulary in VOCABULARIES:
            found = {path: worker({"vocabulary": vocabulary, "path": path}) for path in peaks}
            for path, answer in found.items():
                peaks[path].append(answer["bytes"] / 2**20)
            plain, chunked = found["plain"], found["chunked"]
            rows.append(
                [
                    f"{vocabulary:,}",
                    HEAD_TOKENS * vocabulary * 4 / 2**20,
                    peaks["plain"][-1],
                    peaks["chunked"][-1],
                    plain["seconds"],
                    chunked["seconds"],
                    max(abs(plain[key] / chunked[key] - 1) for key in ("mean", "gradient")),
                ]
            )
    columns = [
        "vocabulary",
        "logits, MiB",
        "log_softmax, MiB",
        "ours, MiB",
        "log_softmax, s",
        "ours, s",
        "relative difference",
    ]
    largest = max(float(str(row[-1])) for row in rows)
    checks = [
        at_most("memory at the largest vocabulary", peaks["chunked"][-1], 200, " MiB"),
        at_least("log_softmax / ours there", peaks["plain"][-1] / peaks["chunked"][-1], 8),
        Check("largest relative difference", largest <= 1e-5, f"{largest:.1e}", "<= 1e-05"),
    ]
    meta = {"tokens": HEAD_TOKENS, "width": HEAD_WIDTH, "what": __doc__}
    return report("learner-memory", columns, rows, meta, checks)


def checkpointing() -> bool:
    """The table of activation checkpointing: a deeper model, on the passes of the long-tailed batch."""
    from rl_api.run import TinyModelSpec
    from rl_trainer.model.presets import write_tiny

    batch = learner_batch.make(learner_batch.SHAPES[0])
    trained = sum(len(one) for one in batch["completions"])
    rows: list[list[object]] = []
    peaks: list[float] = []
    losses: list[float] = []
    with tempfile.TemporaryDirectory(prefix="rltrain-bench-") as scratch:
        folder = Path(scratch) / "model"
        shape = TinyModelSpec(
            hidden_size=128, layers=12, intermediate_size=512, max_positions=learner_batch.LONGEST
        )
        write_tiny(folder, shape)
        for options in ((), ("checkpointing",)):
            arguments = (str(folder), "1", str(RATE), *options)
            with Worker(
                "learner-memory", sys.executable, BENCH / "worker_learner.py", *arguments, env=RETURN_MEMORY
            ) as worker:
                worker({**batch, "fresh": True, "steps": 1})  # the optimizer's moments
                answer = worker({**batch, "fresh": False, "steps": 2})
            peaks.append(answer["bytes"] / 2**20)
            losses.append(answer["losses"][-1])
            seconds = min(answer["seconds"])
            rows.append(["again in backward" if options else "kept", peaks[-1], seconds, trained / seconds])
    checks = [
        at_least("memory of kept activations / computed again", peaks[0] / peaks[1], 2),
        Check("same loss after three steps", losses[0] == losses[1], f"{losses}", "equal"),
    ]
    columns = ["activations", "highest, MiB", "s/step", "trained tok/s"]
    return report("learner-checkpointing", columns, rows, {"what": __doc__}, checks)


def main() -> bool:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--repetitions", type=int, default=5)
    parser.add_argument("--threads", type=int, default=2, help="torch threads of each side, ranks together")
    parser.add_argument(
        "--ranks",
        type=int,
        nargs="+",
        default=[1, 2],
        help="ranks of each side, one table's rows after another's",
    )
    parser.add_argument("--memory", action="store_true", help="only the tables of memory")
    parser.add_argument("--case", action="append", choices=[shape.name for shape in learner_batch.SHAPES])
    options = parser.parse_args()

    if options.memory:
        return bool(memory() & checkpointing())
    from rl_api.run import TinyModelSpec
    from rl_trainer.model.presets import write_tiny

    rows: list[list[object]] = []
    checks: list[Check] = []
    with tempfile.TemporaryDirectory(prefix="rltrain-bench-") as scratch:
        folder = Path(scratch) / "model"
        write_tiny(folder, TinyModelSpec(layers=4, max_positions=learner_batch.LONGEST))
        for ranks in options.ranks:
            mine, theirs = workers(folder, options.threads, ranks)
            with mine, theirs:
                for shape in learner_batch.SHAPES:
                    if options.case and shape.name not in options.case:
                        continue
                    name = shape.name if ranks == 1 else f"{shape.name}, {ranks} ranks"
                    row, more = measure(shape, mine, theirs, options.repetitions, name)
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
        "share of the limit",
        "loss, largest difference",
    ]
    meta = {"repetitions": options.repetitions, "threads": options.threads, "what": __doc__}
    passed = report("learner", columns, rows, meta, checks)
    return passed if options.case else bool(passed & memory() & checkpointing())


if __name__ == "__main__":
    sys.exit(not main())
