"""Runs the comparison with peers in an environment of their own: environment.py [PYTEST-ARGUMENT...].

Made on first use (bench/.venv-numerics), with versions of constraints.txt. Installed of verl and OpenRLHF is what the
files compared import: their requirements of other PyTorch and transformers versions are overridden, and what needs a GPU
compiler, or serves other parts of them, is left out. Our own code is not installed but found where it is.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "bench"))

from peers import PeerError, environment  # noqa: E402  (the benchmarks' way to install a peer)

PEERS = ("verl==0.9.1", "trl==1.16.0", "openrlhf==0.11.2")
TOOLS = ("torch", "transformers", "pydantic", "rich", "pytest", "pytest-timeout")
CONSTRAINED = (*TOOLS, "numpy", "ray")  # versions of constraints.txt
PINNED = ("accelerate==1.15.0", "datasets==5.2.0", "tensordict==0.10.0")
# fmt: off
LEFT_OUT = (
    "aiohttp", "bitsandbytes", "deepspeed", "einops", "flash-attn", "grpcio", "isort", "jsonlines", "loralib", "optimum",
    "optree", "peft", "pybind11", "pylatexenc", "pynvml", "tensorboard", "torchdata", "torchmetrics",
    "transformers-stream-generator", "wandb",
)
# fmt: on


def main() -> None:
    constraints = (ROOT / "constraints.txt").read_text().splitlines()
    constrained = [line for line in constraints if line.partition("==")[0] in CONSTRAINED]
    overrides = (*constrained, *PINNED, *(f"{name}; sys_platform=='never'" for name in LEFT_OUT))
    try:
        python = environment("numerics", (*PEERS, *TOOLS), overrides)
    except PeerError as error:
        sys.exit(f"test-numerics: {error}")
    print(f"ours against {', '.join(PEERS)}", flush=True)
    settings = {
        "PYTHONPATH": os.pathsep.join(str(ROOT / part) for part in ("api", "trainer")),
        "OMP_NUM_THREADS": "1",
        "HF_HUB_OFFLINE": "1",
    }
    os.chdir(ROOT)
    arguments = ["-m", "pytest", "tests/numerics", "--disable-warnings", *sys.argv[1:]]  # the peers' own
    os.execve(python, [str(python), *arguments], {**os.environ, **settings})


if __name__ == "__main__":
    main()
