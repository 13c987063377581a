"""Resident memory of learner ranks against what `rltrain plan` reckons (`rl_api.sizes`).

    python bench/memory.py [--ranks 1 2 4] [--threads 1] [--tokens 1024] [--quick]

Models are random weights of Qwen2's shape, float32, written to a temporary folder. Every rank is a process of its own, as in
a run; ranks that divide a model (FSDP2) meet over gloo. A rank loads the model, takes two optimizer steps of two
micro-batches each and publishes. What libraries take is left out (`worker_memory.py`).

Table 1: one process, five shapes: highest resident memory against the estimate, which must be within 10 %.
Table 2: about 200 M parameters over 1, 2 and 4 ranks: the highest of any rank, at most 1.15 of its share of the state
(16 bytes per parameter), one layer, and activations, which is less than the estimate: FSDP2 holds two layers, and what is in
no layer, whole. Publishing may raise it by 300 MB.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from peers import BENCH, Worker
from table import Check, add_out, at_most, report

from rl_api.sizes.learner import GRADIENT, MOMENTS, WEIGHT, LearnerLayout, learner_parts
from rl_api.sizes.memory import Device
from rl_api.sizes.shape import ModelShape, model_shape

MB = 10**6
LENGTH = 64  # tokens of a sequence
STEPS = 2
DEADLINE = 1200.0  # seconds of one rank
WITHIN = 0.10  # of the estimate
MOST_OF_SHARE, MOST_OF_PUBLISHING = 1.15, 300.0


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


def main() -> int:
    """Measure, print the tables, return the exit status."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--ranks", type=int, nargs="+", default=[1, 2, 4])
    parser.add_argument("--threads", type=int, default=1, help="of each rank")
    parser.add_argument("--tokens", type=int, default=256, help="of a micro-batch")
    parser.add_argument(
        "--quick", action="store_true", help="one shape, and a small model; no targets for ranks"
    )
    parser.add_argument("--only", choices=("shapes", "ranks"), help="one of the tables")
    add_out(parser)
    options = parser.parse_args()
    passed = [
        table(options)
        for name, table in (("shapes", five), ("ranks", divided))
        if options.only in (None, name)
    ]
    return 0 if all(passed) else 1


if __name__ == "__main__":
    sys.exit(main())
