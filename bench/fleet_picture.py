"""The fleet dashboard as a picture, without Grafana: docs/images/fleet.png.

    python bench/fleet_picture.py [--prometheus http://127.0.0.1:9090] [--hours 12] [FILE]

A real Prometheus answers the dashboard's own queries, and the panels are drawn at their places. Without --prometheus one is
started here (scripts/tools prometheus promtool) that has scraped a fleet which never was: tests/support/made_up_fleet.py.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT / "tests" / "support"), str(ROOT / "tests" / "integration")]

from panels import draw  # noqa: E402
from prometheus_process import Prometheus, backfilled, panel_answers  # noqa: E402

DASHBOARD = ROOT / "charts" / "rltrain" / "files" / "dashboards" / "fleet.json"
PICTURE = ROOT / "docs" / "images" / "fleet.png"


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--prometheus", help="address of a Prometheus that scrapes an operator")
    parser.add_argument("--hours", type=float, default=18.0, help="how far back lines go")
    parser.add_argument("file", nargs="?", type=Path, default=PICTURE)
    arguments = parser.parse_args()
    dashboard = json.loads(DASHBOARD.read_text(encoding="utf-8"))
    if arguments.prometheus:
        said = f"drawn by bench/fleet_picture.py from the answers of {arguments.prometheus}"
        answers = panel_answers(Prometheus(arguments.prometheus), dashboard, time.time(), arguments.hours)
    else:
        said = "drawn by bench/fleet_picture.py from the answers of a Prometheus; the fleet is made up"
        with tempfile.TemporaryDirectory() as folder, backfilled(Path(folder)) as (prometheus, end):
            answers = panel_answers(prometheus, dashboard, end, arguments.hours)
    arguments.file.parent.mkdir(parents=True, exist_ok=True)
    draw(dashboard, answers, said, arguments.file)
    print(f"{arguments.file}: {arguments.file.stat().st_size // 1024} KB")


if __name__ == "__main__":
    main()
