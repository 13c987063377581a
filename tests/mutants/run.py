"""Changes the pure folders at random, one place at a time, and counts which changes their unit tests notice.

    run.py [--seed N] [--count N] [FOLDER...]      FOLDER: only what begins with it, such as api or trainer/rl_trainer/buffer

Works in copies of the tree, two at a time. Only the tests that run a changed line are asked (as measured once, without any
change); a test that fails, or that ends no more, has noticed. Fails below 98 %; what survived is printed as a diff.
"""

from __future__ import annotations

import argparse
import importlib
import multiprocessing
import os
import random
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import NamedTuple

import pytest
from coverage import CoverageData

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "tests" / "support"))

from mutations import Mutant, mutants  # noqa: E402

# What is pure, and the folders of tests/unit whose tests are asked about it.
PURE: Mapping[str, tuple[str, ...]] = {
    "api/rl_api": ("api",),
    "operator/rl_operator/model": ("operator/model", "operator/plan", "operator/render", "operator/decide"),
    "operator/rl_operator/plan": ("operator/plan", "operator/render"),
    "operator/rl_operator/render": ("operator/render",),
    "operator/rl_operator/decide": ("operator/decide",),
    "trainer/rl_trainer/algorithms": ("algorithms",),
    "trainer/rl_trainer/buffer": ("buffer",),
    "trainer/rl_trainer/flow/policies.py": ("flow",),
    "trainer/rl_trainer/placement/elastic.py": ("placement",),
}
SHELLS = ("actor.py", "__main__.py")
PACKAGES = ("api", "cli", "operator", "trainer")
# Imported once, before the processes that run tests are forked.
HEAVY = ("hypothesis", "jsonschema", "numpy", "pydantic", "torch", "yaml")
ENOUGH = 0.98
# Seconds that tests may take beyond three times what they take without a change.
PATIENCE = 30.0
FORK = multiprocessing.get_context("fork")


class Work(NamedTuple):
    """One mutant, and who is asked about it."""

    mutant: Mutant
    folders: tuple[str, ...]
    tests: frozenset[str] | None
    """None: all tests of the folders."""
    seconds: float


class OnlyTests:
    """A plugin of pytest: runs these tests and no others; None: all."""

    def __init__(self, names: frozenset[str] | None):
        self._names = names

    def pytest_collection_modifyitems(self, items: list[pytest.Item]) -> None:
        if self._names is not None:
            items[:] = [item for item in items if item.nodeid in self._names]


class Coverage:
    """Which tests run a line, measured in an unchanged copy of the tree."""

    def __init__(self, tree: Path, folders: set[str]):
        self._tree = tree
        self._data: dict[str, CoverageData] = {}
        self.seconds: dict[str, float] = {}
        for folder in sorted(folders):
            file = tree / f".coverage.{folder.replace('/', '.')}"
            config = tree / ".coveragerc"  # all of ours, in place of what pyproject.toml names
            config.write_text("[run]\ninclude = " + ",".join(f"{package}/*" for package in PACKAGES) + "\n")
            options = ("--cov", f"--cov-config={config}", "--cov-context=test", "--cov-report=")
            began = time.monotonic()
            code = _asked(tree, (folder,), None, 1800.0, *options, COVERAGE_FILE=str(file))
            if code != pytest.ExitCode.OK:
                sys.exit(f"mutants: tests/unit/{folder} fails without any change (pytest's status is {code})")
            self.seconds[folder] = time.monotonic() - began
            self._data[folder] = CoverageData(str(file))
            self._data[folder].read()

    def tests(self, mutant: Mutant, folders: tuple[str, ...]) -> frozenset[str] | None:
        """Those that run its lines; None: all, as the lines are run when the file is imported."""
        found: set[str] = set()
        for folder in folders:
            lines = self._data[folder].contexts_by_lineno(str(self._tree / mutant.path))
            for number in range(mutant.first, mutant.last + 1):
                found.update(lines.get(number, ()))
        return None if "" in found else frozenset(name.partition("|")[0] for name in found)


def main() -> None:
    parser = argparse.ArgumentParser(description="random single mutations of the pure folders")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--count", type=int, default=200)
    parser.add_argument("only", nargs="*", metavar="FOLDER")
    args = parser.parse_args()
    os.environ["OMP_NUM_THREADS"] = "1"
    for name in HEAVY:
        importlib.import_module(name)
    with tempfile.TemporaryDirectory(prefix="rltrain-mutants-") as temporary:
        unchanged, *trees = (_copy(Path(temporary) / str(number)) for number in range(3))
        everything = list(_everything(unchanged, tuple(args.only)))
        if not everything:
            sys.exit(f"mutants: {' '.join(args.only)}: nothing of {', '.join(PURE)} begins so")
        chosen = random.Random(args.seed).sample(everything, min(args.count, len(everything)))
        print(f"{len(chosen)} of {len(everything)} possible changes, seed {args.seed}", flush=True)
        survivors = 0
        for mutant, asked in _survivors(chosen, unchanged, trees):
            survivors += 1
            print(f"\n\n{mutant.path}:{mutant.first}: {mutant.kind} ({asked})")
            print(mutant.diff((unchanged / mutant.path).read_text()), flush=True)
    noticed = 1 - survivors / len(chosen)
    print(f"\n\nnoticed: {len(chosen) - survivors} of {len(chosen)}, {noticed:.1%}")
    sys.exit(noticed < ENOUGH)


def _survivors(
    chosen: list[tuple[Mutant, tuple[str, ...]]], unchanged: Path, trees: list[Path]
) -> Iterator[tuple[Mutant, str]]:
    """Those that no test notices, each with the tests that were asked."""
    coverage = Coverage(unchanged, {folder for _, folders in chosen for folder in folders})
    free = FORK.Queue()
    for tree in trees:
        free.put(tree)
    work = [
        Work(
            mutant,
            folders,
            coverage.tests(mutant, folders),
            PATIENCE + 3 * sum(coverage.seconds[folder] for folder in folders),
        )
        for mutant, folders in chosen
    ]
    with ProcessPoolExecutor(len(trees), FORK, _begin, (free,)) as pool:
        for one, noticed in zip(work, pool.map(_notices, work), strict=True):
            if noticed:
                print(".", end="", flush=True)
            else:
                tests = one.tests
                asked = (
                    "all tests" if tests is None else f"{len(tests)} tests" if tests else "no test runs it"
                )
                yield one.mutant, asked


def _everything(tree: Path, only: tuple[str, ...]) -> Iterator[tuple[Mutant, tuple[str, ...]]]:
    for folder, tests in PURE.items():
        place = tree / folder
        for file in [place] if place.is_file() else sorted(place.rglob("*.py")):
            path = str(file.relative_to(tree))
            if file.name not in SHELLS and (not only or path.startswith(only)):
                for mutant in mutants(path, file.read_text()):
                    yield mutant, tests


def _copy(tree: Path) -> Path:
    command = ["git", "ls-files", "--cached", "--others", "--exclude-standard", "-z"]
    listed = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True).stdout
    for name in filter(None, listed.split("\0")):
        if (ROOT / name).is_file():
            (tree / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(ROOT / name, tree / name)
    return tree


_tree: Path


def _begin(trees: multiprocessing.Queue[Path]) -> None:
    global _tree
    _tree = trees.get()


def _notices(work: Work) -> bool:
    if work.tests is not None and not work.tests:
        return False
    file = _tree / work.mutant.path
    original = file.read_text()
    file.write_text(work.mutant.source)
    try:
        return _asked(_tree, work.folders, work.tests, work.seconds, "-x") != pytest.ExitCode.OK
    finally:
        file.write_text(original)


def _asked(
    tree: Path,
    folders: tuple[str, ...],
    tests: frozenset[str] | None,
    seconds: float,
    *options: str,
    **env: str,
) -> int | None:
    """pytest's exit status, of a process of its own; None: it did not end in time."""
    process = FORK.Process(target=_run_tests, args=(tree, folders, tests, options, env))
    process.start()
    process.join(seconds)
    if process.is_alive():
        process.kill()
        process.join()
        return None
    return process.exitcode


def _run_tests(
    tree: Path,
    folders: tuple[str, ...],
    tests: frozenset[str] | None,
    options: tuple[str, ...],
    env: dict[str, str],
) -> None:
    silent = os.open(os.devnull, os.O_RDWR)
    for stream in range(3):
        os.dup2(silent, stream)
    os.chdir(tree)
    paths = [str(tree / package) for package in PACKAGES]
    sys.path[:0] = paths
    sys.dont_write_bytecode = True  # a change within a second, of the same length, would not be seen
    os.environ.update(env, PYTHONPATH=os.pathsep.join(paths), PYTHONDONTWRITEBYTECODE="1")
    where = [f"tests/unit/{folder}" for folder in folders]
    plugins = ["-p", "no:cacheprovider", "-p", "no:xdist", "--hypothesis-seed=0"]
    os._exit(pytest.main([*where, *plugins, *options], plugins=[OnlyTests(tests)]))


if __name__ == "__main__":
    main()
