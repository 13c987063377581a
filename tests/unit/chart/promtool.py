"""Prometheus' own evaluation of rules and queries."""

from __future__ import annotations

import subprocess
from pathlib import Path

from chart_rendering import ROOT

PROMTOOL = ROOT / ".tools" / "bin" / "promtool"


def promtool(*arguments: str, folder: Path) -> subprocess.CompletedProcess[str]:
    """Run it in a folder."""
    assert PROMTOOL.exists(), f"{PROMTOOL.relative_to(ROOT)} is missing: run scripts/tools promtool"
    return subprocess.run(
        [str(PROMTOOL), *arguments], capture_output=True, text=True, timeout=240, check=False, cwd=folder
    )
