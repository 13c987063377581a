"""Resident memory of learner ranks against what `rltrain plan` reckons (`rl_api.sizes`).

    python bench/memory.py [--ranks 1 2 4] [--threads 1] [--tokens 1024] [--quick] [--only run]

Models are random weights of Qwen2's shape, float32, written to a temporary folder. Every rank is a process of its own, as in
a run; ranks that divide a model (FSDP2) meet over gloo. A rank loads the model, takes two optimizer steps of two
micro-batches each and publishes. What libraries take is left out (`worker_memory.py`).

Table 1: one process, five shapes: highest resident memory against the estimate, which must be within 10 %.
Table 2: about 200 M parameters over 1, 2 and 4 ranks: the highest of any rank, at most 1.15 of its share of the state
(16 bytes per parameter), one layer, and activations, which is less than the estimate: FSDP2 holds two layers, and what is in
no layer, whole. Publishing may raise it by 300 MB.
Table 3: `rltrain run` itself, with a checkpoint after every step, of two models: the highest resident memory of the learner
and of the driver, libraries included: at most 22 bytes per parameter and activations, and 600 MB.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml
from peers import BENCH, LOGS, PeerError, Worker
from table import Check, add_out, at_most, report
from worker_head import resident

from rl_api.sizes.learner import GRADIENT, MOMENTS, WEIGHT, LearnerLayout, learner_parts
from rl_api.sizes.memory import Device
from rl_api.sizes.shape import ModelShape, model_shape

MB = 10**6
LENGTH = 64  # tokens of a sequence
STEPS = 2
DEADLINE = 1200.0  # seconds of one rank
WITHIN = 0.10  # of the estimate
MOST_OF_SHARE, MOST_OF_PUBLISHING = 1.15, 300.0
MOST_OF_RUN, MOST_OF_DRIVER = 22.0, 600.0  # bytes per parameter of the learner, MB of the driver
LOOK_SECONDS = 0.05
ACTORS = {"ray::LearnerActor": "learner", "ray::SamplerActor": "sampler"}
"""As Ray names their processes."""


@dataclass(frozen=True)
class Shape:
    """Sizes of a model; heads are 64 wide, half as many for keys."""

    hidden: int
    layers: int
    inner: int
    vocabulary: int
    tied: bool = True

    @property
    def config(self) -> dict[str, Any]:
        """Its `config.json`."""
        return {
            "architectures": ["Qwen2ForCausalLM"],
            "model_type": "qwen2",
            "vocab_size": self.vocabulary,
            "hidden_size": self.hidden,
            "num_hidden_layers": self.layers,
            "num_attention_heads": self.hidden // 64,
            "num_key_value_heads": self.hidden // 128,
            "intermediate_size": self.inner,
            "max_position_embeddings": 4096,
            "hidden_act": "silu",
            "rms_norm_eps": 1e-6,
            "rope_theta": 10000.0,
            "tie_word_embeddings": self.tied,
            "use_sliding_window": False,
            "bos_token_id": None,
            "eos_token_id": 1,
            "pad_token_id": 0,
            "dtype": "float32",
        }


SMALL = Shape(128, 2, 256, 512)
FIVE = (
    Shape(384, 8, 1024, 16_384),
    Shape(512, 12, 1408, 32_768),
    Shape(640, 16, 1728, 8_192),
    Shape(768, 12, 2048, 32_768, tied=False),
    Shape(896, 14, 2432, 32_768),
)
LARGE = Shape(1024, 16, 2816, 16_384)
RUNS = (Shape(640, 8, 1728, 16_384), Shape(896, 12, 2432, 32_768))


def write(shape: Shape, folder: Path) -> Path:
    """A folder of random weights."""
    from safetensors.torch import save_file

    from rl_trainer.model.config import parse_config
    from rl_trainer.model.decoder import Decoder

    folder.mkdir()
    (folder / "config.json").write_text(json.dumps(shape.config))
    model = Decoder(parse_config(shape.config))
    model.initialize(0.02, seed=0)
    save_file(
        {name: value.contiguous() for name, value in model.hf_state_dict().items()},
        folder / "model.safetensors",
    )
    return folder


def measure(shape: Shape, ranks: int, options: argparse.Namespace, **learner: Any) -> dict[str, int]:
    """Of each number the highest of any rank."""
    with tempfile.TemporaryDirectory() as made, ThreadPoolExecutor(ranks) as pool:
        folder = Path(made)
        request = {
            "folder": str(write(shape, folder / "model")),
            "small": str(write(SMALL, folder / "small")),
            "store": str(folder / "store"),
            "ranks": ranks,
            "tokens": options.tokens,
            "length": LENGTH,
            "steps": STEPS,
            "learner": learner,
        }

        def one(rank: int) -> dict[str, Any]:
            with Worker(
                f"memory-{rank}", sys.executable, BENCH / "worker_memory.py", str(options.threads)
            ) as worker:
                return worker({**request, "rank": rank}, timeout=DEADLINE)

        found = list(pool.map(one, range(ranks)))
    return {name: max(answer[name] for answer in found) for name in found[0]}


def layout(ranks: int, options: argparse.Namespace, *, checkpointing: bool = False) -> LearnerLayout:
    """As `rltrain plan` would see the learner."""
    return LearnerLayout(
        ranks=ranks,
        shard=ranks,
        tokens=options.tokens,
        longest=LENGTH,
        half=False,
        checkpointing=checkpointing,
    )


def estimate(shape: ModelShape, layout: LearnerLayout) -> tuple[int, int]:
    """Bytes that the plan reckons with but for libraries, and of these activations."""
    parts = learner_parts(shape, layout, Device(0, accelerator=False))
    return parts.total - parts.overhead, parts.activations


def five(options: argparse.Namespace) -> bool:
    """The first table."""
    rows: list[list[Any]] = []
    checks: list[Check] = []
    for one in FIVE[: 1 if options.quick else None]:
        shape = model_shape(one.config)
        reckoned, activations = estimate(shape, layout(1, options))
        found = measure(one, 1, options)
        off = found["peak"] / reckoned - 1
        name = f"{shape.parameters / 1e6:.0f} M, {one.layers} x {one.hidden}"
        rows.append(
            [name, found["peak"] / MB, reckoned / MB, activations / MB, 100 * off, found["load_peak"] / MB]
        )
        checks.append(
            Check(f"{name}, off the estimate", abs(off) <= WITHIN, f"{off:+.1%}", f"<= {WITHIN:.0%}")
        )
        print(rows[-1], file=sys.stderr)
    columns = ["one process", "peak MB", "estimate MB", "of it activations", "off %", "peak of loading MB"]
    return report("memory-shapes", columns, rows, checks=checks, out=options.out)


def divided(options: argparse.Namespace) -> bool:
    """The second table."""
    one = SMALL if options.quick else LARGE
    shape = model_shape(one.config)
    rows: list[list[Any]] = []
    checks: list[Check] = []
    for ranks in options.ranks:
        reckoned, activations = estimate(shape, layout(ranks, options))
        state = (WEIGHT + GRADIENT + MOMENTS) * shape.parameters // ranks
        share = state + WEIGHT * shape.largest_layer + activations
        found = measure(one, ranks, options)
        name = f"{shape.parameters / 1e6:.0f} M, ranks: {ranks}"
        numbers = [found["peak"], share, found["peak"] / share * MB, reckoned, found["peak"] / reckoned * MB]
        numbers += [found[key] for key in ("load_peak", "kept", "publish", "before")]
        rows.append([name, *(number / MB for number in numbers)])
        print(rows[-1], file=sys.stderr)
        if not options.quick:
            checks.append(at_most(f"{name}, peak / share", found["peak"] / share, MOST_OF_SHARE))
            checks.append(at_most(f"{name}, publishing", found["publish"] / MB, MOST_OF_PUBLISHING, " MB"))
    columns = ["one model", "peak MB", "share MB", "peak / share", "estimate MB", "peak / estimate"]
    columns += ["peak of loading MB", "between steps MB", "publishing MB", "libraries MB"]
    return report("memory", columns, rows, checks=checks, out=options.out)


def run_document(model: Path, tokens: int) -> dict[str, Any]:
    """The run of the third table: three steps of eight answers, and as many checkpoints."""
    return {
        "apiVersion": "rltrain.dev/v1alpha1",
        "kind": "RLTrainingRun",
        "metadata": {"name": "bench-memory"},
        "spec": {
            "model": {"source": str(model)},
            "task": {"environment": "reasoning-gym", "name": "chain_sum"},
            "algorithm": {"name": "grpo", "groupSize": 4, "promptsPerStep": 2, "learningRate": 1e-6},
            "sampler": {"maxNewTokens": 32},
            "learner": {"tokensPerMicroBatch": tokens},
            "checkpoint": {"everySteps": 1, "keep": 1},
            "stop": {"maxSteps": 3},
        },
    }


def highest(shape: Shape, options: argparse.Namespace) -> dict[str, int]:
    """Highest resident memory in bytes of the processes of a run of `shape`: of driver, learner and sampler."""
    from rl_trainer.model.presets import write_tiny

    with tempfile.TemporaryDirectory(prefix="rltrain-bench-") as made:
        folder = Path(made)
        model, tiny = write(shape, folder / "model"), write_tiny(folder / "tiny")
        for name in ("tokenizer.json", "tokenizer_config.json", "generation_config.json"):
            shutil.copyfile(tiny / name, model / name)
        (folder / "run.yaml").write_text(yaml.safe_dump(run_document(model, options.tokens)))
        command = [str(Path(sys.executable).parent / "rltrain"), "run", str(folder / "run.yaml")]
        LOGS.mkdir(parents=True, exist_ok=True)
        log = LOGS / "memory-run.log"
        with log.open("w") as output:
            process = subprocess.Popen(
                [*command, "--out", str(folder / "run")],
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,
                env={name: value for name, value in os.environ.items() if name != "RAY_ADDRESS"},
            )
            found, deadline = {"driver": 0, "learner": 0, "sampler": 0}, time.monotonic() + DEADLINE
            try:
                while process.poll() is None:
                    if time.monotonic() > deadline:
                        raise PeerError(f"rltrain run took more than {DEADLINE:.0f} s; see {log}")
                    look(process.pid, found)
                    time.sleep(LOOK_SECONDS)
            finally:
                with contextlib.suppress(ProcessLookupError):
                    os.killpg(process.pid, signal.SIGKILL)
        if process.returncode:
            raise PeerError(f"rltrain run ended with status {process.returncode}; see {log}")
    return found


def look(driver: int, found: dict[str, int]) -> None:
    """Raises the numbers in `found` to what the processes of the session that `driver` leads have had so far."""
    for folder in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError, RuntimeError):  # it has ended meanwhile
            if os.getsid(int(folder.name)) == driver:
                name = (folder / "cmdline").read_bytes().decode(errors="replace")
                own = int(folder.name) == driver
                if (
                    role := "driver" if own else ACTORS.get(name.partition(".")[0].partition("\0")[0])
                ) is not None:
                    found[role] = max(found[role], resident("VmHWM", folder))


def runs(options: argparse.Namespace) -> bool:
    """The third table."""
    rows: list[list[Any]] = []
    checks: list[Check] = []
    for one in (SMALL,) if options.quick else RUNS:
        shape = model_shape(one.config)
        _, activations = estimate(shape, layout(1, options))
        found = highest(one, options)
        name, each = f"{shape.parameters / 1e6:.0f} M", (found["learner"] - activations) / shape.parameters
        rows.append([name, *(found[role] / MB for role in found), activations / MB, each])
        print(rows[-1], file=sys.stderr)
        checks.append(at_most(f"{name}, driver", found["driver"] / MB, MOST_OF_DRIVER, " MB"))
    if not options.quick:  # of small models libraries are the most
        checks.append(
            at_most(f"{name}, learner but for activations", each, MOST_OF_RUN, " bytes per parameter")
        )
    columns = [
        "one run",
        "driver MB",
        "learner MB",
        "sampler MB",
        "of learner activations",
        "bytes per parameter",
    ]
    return report("memory-run", columns, rows, checks=checks, out=options.out)


def main() -> int:
    """Measure, print the tables, return the exit status."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--ranks", type=int, nargs="+", default=[1, 2, 4])
    parser.add_argument("--threads", type=int, default=1, help="of each rank")
    parser.add_argument("--tokens", type=int, default=256, help="of a micro-batch")
    parser.add_argument(
        "--quick", action="store_true", help="one shape, and small models; no targets for ranks and learners"
    )
    parser.add_argument("--only", choices=("shapes", "ranks", "run"), help="one of the tables")
    add_out(parser)
    options = parser.parse_args()
    passed = [
        table(options)
        for name, table in (("shapes", five), ("ranks", divided), ("run", runs))
        if options.only in (None, name)
    ]
    return 0 if all(passed) else 1


if __name__ == "__main__":
    sys.exit(main())
