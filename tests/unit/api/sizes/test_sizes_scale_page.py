"""docs/scale.md is what the code writes."""

from __future__ import annotations

from pathlib import Path

import scale_page

PAGE = Path(__file__).parents[4] / "docs" / "scale.md"


def test_the_page_is_what_the_code_writes() -> None:
    assert PAGE.read_text(encoding="utf-8") == scale_page.write(), (
        "python tests/support/scale_page.py > docs/scale.md"
    )
