"""What docs/cluster.md and the help show can be typed."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from rl_cli.main import CLUSTER, parser, split

ROOT = Path(__file__).parents[3]
GUIDE = ROOT / "docs" / "cluster.md"
NAMES = "|".join(command.name for command in CLUSTER)


def commands() -> Iterator[Any]:
    """Every command for a cluster in a code block of the guide or in an example of the help."""
    texts = [("guide", GUIDE.read_text(encoding="utf-8"))]
    for action in parser(CLUSTER)._subparsers._group_actions:  # type: ignore[union-attr]
        texts += [(name, one.epilog or "") for name, one in action.choices.items()]  # type: ignore[union-attr,attr-defined]
    for source, text in texts:
        for line in text.splitlines():
            for part in re.split(r" && | \| |; ", line.split("  #")[0]):
                if found := re.match(rf"\s*(?:kubectl )?rltrain ((?:{NAMES}) .*|(?:{NAMES})$)", part):
                    yield pytest.param(found[1], id=f"{source}: {found[1]}")


@pytest.mark.parametrize("command", list(commands()))
def test_commands_can_be_typed(command: str) -> None:
    words, *_ = split(shlex.split(re.split(" [<>] ", command)[0], comments=True))
    args = parser(CLUSTER).parse_args(words)
    for name in (getattr(args, "file", None), getattr(args, "profile", None)):
        assert name in (None, "run.yaml", "-") or (ROOT / name).exists(), f"there is no {name}"


def test_every_command_is_in_the_guide() -> None:
    text = GUIDE.read_text(encoding="utf-8")
    assert [command.name for command in CLUSTER if f"rltrain {command.name}" not in text] == []


def test_links_lead_somewhere() -> None:
    text = GUIDE.read_text(encoding="utf-8")
    headings = [
        re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-")
        for heading in re.findall(r"^#+ (.+)$", text, flags=re.M)
    ]
    for target in re.findall(r"\]\(([^)]+)\)", text):
        name, _, section = target.partition("#")
        if "://" not in target:
            assert not name or (GUIDE.parent / name).exists(), target
            assert name or section in headings, target
