"""README and guides stay true: what they name exists, and what exists is named."""

from __future__ import annotations

import datetime
import json
import re
import shlex
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any, get_args

import pytest
from pydantic import BaseModel

from rl_api import RLTrainingRun, RunSpec, validate_files
from rl_api.recipes import RECIPES, recipe
from rl_api.service import RLPolicyService, ServiceSpec
from rl_cli.main import CLUSTER, HERE, parser
from rl_trainer.cli import _parser
from rl_trainer.observe.charts import SECTIONS
from rl_trainer.observe.metrics import FIELDS

ROOT = Path(__file__).parents[2]
TRAINER = ROOT / "trainer" / "rl_trainer"
SERVING = ROOT / "trainer" / "rl_serve"
GENERATION = ROOT / "trainer" / "rl_generate"
OPERATOR = ROOT / "operator" / "rl_operator"

PAGES = [
    ROOT / name
    for name in (
        "README.md",
        "docs/architecture.md",
        "docs/training.md",
        "docs/serving.md",
        "docs/generate.md",
        "docs/algorithms.md",
        "docs/scale.md",
        "docs/gpu-lane.md",
        "docs/tutorials/README.md",
        "examples/README.md",
    )
]
EXAMPLES = sorted((ROOT / "examples").glob("*.yaml"))


def text_of(page: Path) -> str:
    return page.read_text(encoding="utf-8")


def code(text: str) -> list[str]:
    """What stands between single backticks, outside code blocks."""
    return re.findall(r"`([^`\n]+)`", re.sub(r"```.*?```", "", text, flags=re.S))


def blocks(text: str) -> list[tuple[str, str]]:
    """(language, content) of every code block."""
    return re.findall(r"^```(\w*)\n(.*?)^```", text, flags=re.S | re.M)


def commands() -> Iterator[Any]:
    """Every `rltrain ...` line of a code block, up to a pipe, and those in comments of the examples."""
    for page in [*PAGES, *EXAMPLES]:
        for line in text_of(page).splitlines():
            if found := re.match(
                r"(?:#\s+)?(?:RAY_ADDRESS=\S+ )?(rltrain (?:run|serve|generate|chat|validate|plan|report) [^|]*)",
                line,
            ):
                yield pytest.param(found[1], id=f"{page.name}: {found[1]}")


def anchor(heading: str) -> str:
    """A heading's address, as GitHub makes it."""
    return re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-")


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_links_lead_somewhere(page: Path) -> None:
    for target in re.findall(r"\]\(([^)]+)\)", text_of(page)):
        if "://" in target:
            continue
        name, _, section = target.partition("#")
        file = (page.parent / name).resolve() if name else page
        assert file.exists(), f"{page.name}: {target} is not there"
        if section:
            headings = re.findall(r"^#+ (.+)$", text_of(file), flags=re.M)
            assert section in [anchor(heading) for heading in headings], f"{page.name}: no section {target}"


def test_modules_of_the_algorithms_page_exist() -> None:
    modules = [
        word for word in code(text_of(ROOT / "docs/algorithms.md")) if re.fullmatch(r"\w+/\w+\.py", word)
    ]
    assert len(modules) > 8
    assert [module for module in modules if not (TRAINER / module).exists()] == []


def test_paths_of_the_architecture_page_exist() -> None:
    paths = [
        word for word in code(text_of(ROOT / "docs/architecture.md")) if "/" in word or word.endswith(".py")
    ]
    roots = [
        ROOT,
        *(
            path.parent
            for side in (GENERATION, OPERATOR, SERVING, TRAINER)
            for path in side.rglob("__init__.py")
        ),
    ]
    written_by_runs = ("model/", "rng/", "initial/", "/status", "/metrics", "/healthz")
    missing = [
        word
        for word in paths
        if word not in written_by_runs
        and not any((root / word).exists() for root in roots)
        and " " not in word
    ]
    assert len(paths) > 30
    assert missing == []


def test_every_folder_is_on_the_architecture_page() -> None:
    words = set(code(text_of(ROOT / "docs/architecture.md")))
    for package in (GENERATION, OPERATOR, SERVING, TRAINER):
        names = [path.name for path in package.glob("*.py") if not path.stem.startswith("__")]
        folders = [path.parent.relative_to(package).as_posix() for path in package.rglob("*/__init__.py")]
        assert len(names + folders) > 6
        assert [name for name in sorted(names + folders) if name not in words] == []


def test_the_table_of_recipes_is_theirs() -> None:
    rows = [
        [cell.strip() for cell in line.strip("|").split("|")]
        for line in text_of(ROOT / "docs/algorithms.md").splitlines()
        if line.startswith("|")
    ]
    head = next(row for row in rows if "`grpo`" in row)
    assert {name.strip("`") for name in head[1:]} == set(RECIPES)
    for field in ("advantage.estimator", "loss.kind", "loss.aggregation"):
        group, name = field.split(".")
        (row,) = [row for row in rows if row[0] == f"`{field}`" and len(row) == len(head)]
        assert row[1:] == [recipe(title.strip("`"))[group][name] for title in head[1:]]


@pytest.mark.parametrize(
    "page", [ROOT / "README.md", ROOT / "examples" / "README.md"], ids=["README", "examples"]
)
def test_every_example_is_in_the_table(page: Path) -> None:
    rows = [line for line in text_of(page).splitlines() if line.startswith("|")]
    missing = [path.name for path in EXAMPLES if not any(f"{path.name})" in row for row in rows)]
    assert len(EXAMPLES) >= 4
    assert missing == []


def test_every_example_is_valid() -> None:
    checked = validate_files([str(path) for path in EXAMPLES])
    assert [one.resource.metadata.name for one in checked] == [path.stem for path in EXAMPLES]


def fields(model: type[BaseModel], prefix: str = "") -> Iterator[str]:
    """All paths of a model's fields as they are written in YAML: `buffer.maxStaleness`."""
    for name, field in model.model_fields.items():
        path = prefix + (field.alias or name)
        yield path
        for one in (field.annotation, *get_args(field.annotation)):
            if isinstance(one, type) and issubclass(one, BaseModel):
                yield from fields(one, f"{path}.")


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_fields_are_spelt_as_in_the_contract(page: Path) -> None:
    known = {
        path for model in (RunSpec, RLTrainingRun, ServiceSpec, RLPolicyService) for path in fields(model)
    }
    sections = {path for path in known if "." not in path}
    named = [word for word in code(text_of(page)) if re.fullmatch(r"[a-z]\w*(\.[a-z]\w*)+", word)]
    named = [word for word in named if word.partition(".")[0] in sections and "metadata[" not in word]
    suffixes = (".py", ".json", ".jsonl", ".html", ".yaml", ".safetensors")
    assert [word for word in named if word not in known and not word.endswith(suffixes)] == []


@pytest.mark.parametrize("command", list(commands()))
def test_commands_can_be_typed(command: str) -> None:
    words = [word for word in shlex.split(command, comments=True) if word != "FILE"]
    arguments = [*words[1:], "run.yaml"] if "FILE" in command else words[1:]
    known = next(one for one in (*HERE, *CLUSTER) if one.name == arguments[0])
    parsed = (parser((known,)) if known.module else _parser()).parse_args(arguments)
    names = [getattr(parsed, "file", None), *getattr(parsed, "files", [])]
    for name in filter(None, names):
        assert name == "run.yaml" or (ROOT / name).exists(), f"{command}: there is no {name}"


def test_targets_of_the_readme_are_made() -> None:
    targets = set(re.findall(r"^([a-z-]+):", text_of(ROOT / "Makefile"), flags=re.M))
    readme = text_of(ROOT / "README.md")
    assert set(re.findall(r"\bmake ([a-z-]+)", readme)) <= targets


def test_every_curve_is_explained() -> None:
    table = re.findall(r"^\| ([^|]+) \|", text_of(ROOT / "docs/training.md"), flags=re.M)
    explained = {title.strip() for cell in table for title in cell.split(",")}
    titles = [chart.title for _, charts in SECTIONS for chart in charts]
    assert [title for title in titles if title not in explained] == []


def test_fields_of_the_metrics_exist() -> None:
    text = text_of(ROOT / "docs/architecture.md")
    times = text[text.index("## What the times mean") :]
    named = re.findall(r"^\| `(\w+)`", times, flags=re.M)
    assert len(named) >= 8
    assert [name for name in named if name not in FIELDS] == []


def test_picture_is_small_and_there() -> None:
    picture = ROOT / "docs" / "images" / "report.png"
    content = picture.read_bytes()
    assert content.startswith(b"\x89PNG")
    assert 20_000 < len(content) < 300_000


def test_example_data_is_right() -> None:
    lines = [json.loads(line) for line in text_of(ROOT / "examples/data/dates.jsonl").splitlines()]
    assert len({line["prompt"] for line in lines}) == len(lines) == 2000
    for line in lines:
        day = datetime.datetime.strptime(line["prompt"], "%B %d, %Y").date()
        assert line["answer"] == day.isoformat()


@pytest.mark.parametrize(
    ("completion", "reward"),
    [("2024-02-29", 1.0), (" 2024-02-29\n", 1.0), ("2023-02-29", 0.5), ("29.2.2024", 0.0), ("", 0.0)],
)
def test_example_reward(completion: str, reward: float) -> None:
    space: dict[str, Any] = {}
    exec(compile(text_of(ROOT / "examples/date_reward.py"), "date_reward.py", "exec"), space)
    assert space["is_a_date"]({}, completion, "2024-02-29") == reward


def test_the_picture_script_wants_a_report(tmp_path: Path) -> None:
    done = subprocess.run(
        [ROOT / "scripts" / "picture", tmp_path], capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode == 1
    assert done.stderr == f"picture: {tmp_path}/report.html is missing; run make demo first\n"
