"""Runs the tests of the vLLM engine in an environment of their own: environment.py [PYTEST-ARGUMENT...].

Made on first use (bench/.venv-vllm-tests): vLLM's build for CPUs with what the trainer needs, in the versions of
constraints.txt where vLLM allows them. Our own code is not installed but found where it is.
"""

from __future__ import annotations

import os
import sys
import tomllib
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "bench"))

from peers import VLLM_OVERRIDES, VLLM_REQUIREMENTS, PeerError, environment  # noqa: E402

TOOLS = ("hypothesis", "openai", "pytest", "pytest-timeout")
# What hands keys and values from one engine to another: its build for the CUDA that torch names, also where there is none.
TRANSFER = ("nixl==1.5.1",)
CONSTRAINED = ("hypothesis", "numpy", "pydantic", "pytest", "pytest-timeout", "tokenizers", "transformers")


def main() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    extras = project["optional-dependencies"]
    trainer = [*project["dependencies"], *extras["trainer"], *extras["serve"]]
    constraints = (ROOT / "constraints.txt").read_text().splitlines()
    constrained = [line for line in constraints if line.partition("==")[0] in CONSTRAINED]
    requirements = (*VLLM_REQUIREMENTS, *trainer, *TOOLS, *TRANSFER)
    try:
        python = environment("vllm-tests", requirements, (*VLLM_OVERRIDES, *constrained))
    except PeerError as error:
        sys.exit(f"test-vllm: {error}")
    settings = {
        "PYTHONPATH": os.pathsep.join(str(ROOT / part) for part in ("api", "cli", "trainer")),
        "OMP_NUM_THREADS": "1",
        "HF_HUB_OFFLINE": "1",
    }
    os.chdir(ROOT)
    arguments = ["-m", "pytest", "tests/vllm", "--disable-warnings", *sys.argv[1:]]  # vLLM's own
    os.execve(python, [str(python), *arguments], {**os.environ, **settings})


if __name__ == "__main__":
    main()
