"""The imports of our packages: no circle, and every lazy import has its reason here.

Read from the source, so that imports inside functions and under `TYPE_CHECKING` count like any other. That a submodule's
import also runs the `__init__` of its package is left out: these only gather names.
"""

from __future__ import annotations

import ast
import sys
from collections.abc import Iterator
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
FOLDERS = ("api", "cli", "operator", "trainer")

# Imports that are not at the top of their file, by reason: module -> what it imports late, libraries by package.
# Every other import stands at the top.
LAZY: dict[str, dict[str, set[str]]] = {
    "help, validate and report need none of it": {
        "rl_trainer.cli": {
            "rl_trainer.driver",
            "rl_trainer.observe.console",
            "rl_trainer.observe.page",
            "rl_trainer.program.run",
            "rl_trainer.run.beginning",
            "rl_trainer.run.planning",
            "rl_trainer.run.run_folder",
        },
        "rl_cli.*": {
            "kubernetes",
            "rl_api.errors",
            "rl_api.printable",
            "rl_cli.cluster",
            "rl_cli.screen",
            "rl_serve.gate.criteria",
            "rl_serve.gate.evaluate",
            "rl_serve.gate.probe",
            "rl_serve.gate.report",
            "rl_generate.job",
            "rl_generate.local",
            "rl_generate.rows",
            "rl_serve.local",
            "rl_trainer.cli",
            "rl_trainer.model.source",
            "rl_trainer.observe.console",
            "rl_trainer.observe.metrics",
            "rl_trainer.observe.page",
            "rl_trainer.observe.timeline",
            "rl_trainer.run.attempts_file",
            "rl_trainer.run.run_folder",
            "websocket",
        },
    },
    "the driver has no torch, but for what few runs need of it": {
        "rl_trainer.algorithms.value_targets": {"rl_trainer.algorithms.gae", "torch"},
        "rl_trainer.model.excerpt": {"rl_trainer.model.decoder", "torch"},
        "rl_trainer.model.resolve": {"rl_trainer.model.presets"},
    },
    "a worker that sends nothing to others has no torch": {
        "rl_trainer.flow.worker": {"rl_trainer.flow.parcels"},
    },
    "Ray is imported while the driver does other things, and its private modules only where they are patched": {
        "rl_trainer.run.local_ray.fork_server": {
            "numpy",
            "rl_trainer.buffer.actor",
            "rl_trainer.learner.actor",
            "rl_trainer.rollout.actor",
            "torch",
        },
        "rl_trainer.run.local_ray.processes": {"ray"},
        "rl_trainer.run.ray_session": {"ray"},
        "rl_generate.local": {"ray", "rl_generate.pipeline", "rl_trainer.model.shared_folder"},
        "rl_serve.local": {"ray", "rl_serve.deployment"},
    },
    "an optional package": {
        "rl_trainer.tasks.environments.gymnasium_game": {"gymnasium"},
        "rl_trainer.rollout.engines.vllm": {"vllm"},
        "rl_trainer.rollout.engines.vllm_worker": {"vllm"},
    },
    "a library that takes long to import and that few runs need": {
        "rl_trainer.algorithms.head_ways": {"liger_kernel"},
        "rl_trainer.model.download": {"fsspec", "huggingface_hub", "tqdm"},
        "rl_trainer.learner.layout": {"torch"},
        "rl_trainer.model.library_model": {"accelerate", "peft", "transformers"},
        "rl_trainer.model.library_context": {"transformers"},
        "rl_trainer.model.library_names": {"transformers"},
        "rl_trainer.model.source": {"rl_trainer.model.download"},
        "rl_trainer.model.tokenizer": {"jinja2", "tokenizers", "transformers"},
        "rl_trainer.observe.tensorboard_events": {"tensorboard"},
        "rl_trainer.program.run": {"torch"},
        "rl_trainer.rollout.engines.library": {"transformers"},
        "rl_trainer.rollout.reward_model": {"transformers"},
        "rl_generate.source": {"fsspec"},
        "rl_trainer.storage.remote_folder": {"fsspec"},
        "rl_trainer.tasks.sources": {
            "pyarrow",
            "rl_trainer.tasks.arrow_rows",
            "rl_trainer.tasks.hub_dataset",
        },
    },
}


# Of these each takes tens to hundreds of MB.
HEAVY = {"datasets", "pandas", "peft", "pyarrow", "torch", "transformers"}


def sources() -> dict[str, ast.Module]:
    """Module -> its source, of all our packages."""
    found = {}
    for folder in FOLDERS:
        for path in sorted((ROOT / folder).rglob("*.py")):
            parts = path.relative_to(ROOT / folder).with_suffix("").parts
            name = ".".join(parts[:-1] if parts[-1] == "__init__" else parts)
            found[name] = ast.parse(path.read_text(encoding="utf-8"))
    return found


SOURCES = sources()


def imports(tree: ast.AST, late: bool = False) -> Iterator[tuple[str, bool]]:
    """Every import below `tree`: a module of ours or a library, and whether it is not at the top of the file."""
    for node in ast.iter_child_nodes(tree):
        if isinstance(node, ast.Import):
            yield from ((alias.name, late) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.module and not node.level, "imports name their module in full"
            for alias in node.names:
                inner = f"{node.module}.{alias.name}"
                yield inner if inner in SOURCES else node.module, late
        else:
            body = isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
            typing = isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test)
            yield from imports(node, late or body or typing)


def circle(graph: dict[str, set[str]]) -> list[str]:
    """One circle of `graph`, or nothing."""
    try:
        TopologicalSorter(graph).prepare()
    except CycleError as error:
        found: list[str] = error.args[1]
        return found
    return []


def late_imports(module: str) -> set[str]:
    """What `module` imports late: our modules by name, libraries by package; the standard library is cheap."""
    names = {name for name, late in imports(SOURCES[module]) if late}
    ours = {name for name in names if name in SOURCES}
    return ours | {name.partition(".")[0] for name in names - ours} - set(sys.stdlib_module_names)


def test_no_circle_of_imports():
    graph = {
        module: {name for name, _ in imports(tree) if name in SOURCES} - {module}
        for module, tree in SOURCES.items()
    }
    assert len(graph) > 150
    assert sum(map(len, graph.values())) > 500
    assert circle(graph) == []


def test_a_circle_is_found_in_functions_and_annotations_too():
    sources = {"a": "def f():\n    import b\n", "b": "if TYPE_CHECKING:\n    import c\n", "c": "import a\n"}
    graph = {name: {other for other, _ in imports(ast.parse(text))} for name, text in sources.items()}
    assert set(circle(graph)) == {"a", "b", "c"}


@pytest.mark.parametrize(
    ("root", "known"),
    [
        ("rl_trainer.driver", {"learner.group", "rollout.fleet", "rollout.task_workers", "run.inputs"}),
        ("rl_trainer.rollout.simulator_actor", {"flow.worker"}),
    ],
)
def test_the_driver_and_simulators_have_no_torch(root: str, known: set[str]):
    """Of what is imported at the top: torch alone takes more memory than a driver may have, and there may be many
    simulators."""
    found, ways = set[str](), [(root, root)]
    while ways:
        module, way = ways.pop()
        if module in found:
            continue
        found.add(module)
        for name, late in imports(SOURCES[module]):
            assert late or name.partition(".")[0] not in HEAVY, f"{way} -> {name}"
            if not late and name in SOURCES:
                ways.append((name, f"{way} -> {name}"))
    assert {f"rl_trainer.{name}" for name in known} <= found


@pytest.mark.parametrize("module", SOURCES)
def test_every_late_import_has_its_reason(module):
    allowed = set().union(
        *(
            names
            for modules in LAZY.values()
            for listed, names in modules.items()
            if listed == module or (listed.endswith("*") and module.startswith(listed[:-1]))
        )
    )
    exact = {name for name in allowed if not name.endswith("*")}
    packages = tuple(name[:-1] for name in allowed if name.endswith("*"))
    unlisted = {name for name in late_imports(module) - exact if not f"{name}.".startswith(packages or "-")}
    assert unlisted == set(), f"{module}: import it at the top, or give the reason in LAZY"


def test_the_list_holds_no_more_than_there_is():
    listed = [(module, names) for modules in LAZY.values() for module, names in modules.items()]
    for module, names in listed:
        if not module.endswith("*"):
            assert names == late_imports(module), module
