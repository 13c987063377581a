from __future__ import annotations

import runpy
from pathlib import Path

import pytest

import rl_api.reference
from rl_api.reference import render

PAGE = Path(__file__).parents[3] / "docs" / "api-reference.md"


def test_the_page_is_up_to_date() -> None:
    assert PAGE.read_text(encoding="utf-8") == render(), (
        "run: python -m rl_api.reference > docs/api-reference.md"
    )


def test_the_module_prints_the_page(capsys: pytest.CaptureFixture[str]) -> None:
    runpy.run_path(str(Path(rl_api.reference.__file__)), run_name="__main__")
    assert capsys.readouterr().out == render()


def test_every_link_has_its_heading_once() -> None:
    page = render()
    headings = [
        line.lstrip("#").strip().lower().replace(" ", "-")
        for line in page.splitlines()
        if line.startswith("##")
    ]
    links = {part.partition(")")[0] for part in page.split("](#")[1:]}
    assert links <= set(headings)
    assert len(headings) == len(set(headings))


def test_every_row_has_five_cells() -> None:
    rows = [line for line in render().splitlines() if line.startswith("|")]
    assert len(rows) > 150
    assert {line.replace("\\|", "").count("|") for line in rows} == {6}
