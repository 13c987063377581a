"""Runs small training runs with another version of Ray: environment.py VERSION [PYTEST-ARGUMENT...].

Made on first use (bench/.venv-ray-VERSION): that Ray and what it needs, in the versions of constraints.txt. Everything
else, torch among it, is found in the environment that runs this, and our own code where it is.
"""

from __future__ import annotations

import os
import sys
import sysconfig
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "bench"))

from peers import PeerError, environment  # noqa: E402  (the benchmarks' way to install something)

# A run that starts Ray itself: what it says, its steps, and how it ends.
QUIET_RUN = "tests/integration/test_run_signals.py::test_a_run_from_standard_input_is_quiet_and_succeeds"


def main() -> None:
    version, *arguments = sys.argv[1:]
    constraints = (ROOT / "constraints.txt").read_text().splitlines()
    others = [line for line in constraints if not line.startswith("ray==")]
    try:
        python = environment(f"ray-{version}", (f"ray[default]=={version}",), others)
    except PeerError as error:
        sys.exit(f"test-ray: {error}")
    # Looked into after the environment's own packages.
    packages = python.parents[1] / "lib" / f"python{sysconfig.get_python_version()}" / "site-packages"
    (packages / "base.pth").write_text(sysconfig.get_paths()["purelib"] + "\n")
    print(f"with Ray {version}", flush=True)
    settings = {
        "PYTHONPATH": os.pathsep.join(str(ROOT / part) for part in ("api", "cli", "trainer")),
        "OMP_NUM_THREADS": "1",
    }
    os.chdir(ROOT)
    os.execve(python, [str(python), "-m", "pytest", *(arguments or [QUIET_RUN])], {**os.environ, **settings})


if __name__ == "__main__":
    main()
