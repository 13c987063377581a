"""A real Prometheus: it scrapes what a test names, or knows a history that was written down, and evaluates rules."""

from __future__ import annotations

import json
import os
import re
import subprocess
import time
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

import pytest
import yaml
from made_up_fleet import history
from operator_process import Program
from ports import free_ports

BINARIES: Final = Path(__file__).resolve().parents[2] / ".tools" / "bin"
SETTLED_SECONDS: Final = 2.0
"""After so long nothing is added to what is known of a time: what is asked is answered, or given up, in one second."""
SCRAPED_SECONDS: Final = 400.0
"""For pages, each of which a busy machine may answer later than within its second many times in turn."""
POINTS: Final = 240
"""Of a line that is drawn."""

Sample = tuple[dict[str, str], float]
"""Labels and a value."""

Line = tuple[dict[str, str], list[tuple[float, float]]]
"""Labels, and values by time."""


class Prometheus:
    """What is asked of a Prometheus at an address."""

    def __init__(self, url: str) -> None:
        self._url = url.rstrip("/")

    @property
    def ready(self) -> bool:
        """Whether it answers."""
        try:
            return self._get("/-/ready").startswith("Prometheus Server is Ready")
        except OSError:
            return False

    def query(self, expression: str, time: float | None = None) -> list[Sample]:
        """What an expression is, now or at a time."""
        at = {} if time is None else {"time": time}
        found = self._ask("query", query=expression, **at)
        assert found["resultType"] == "vector", expression
        return [(one["metric"], float(one["value"][1])) for one in found["result"]]

    def query_range(self, expression: str, start: float, end: float, step: float) -> list[Line]:
        """What an expression was, every `step` seconds."""
        found = self._ask("query_range", query=expression, start=start, end=end, step=step)
        return [
            (one["metric"], [(float(at), float(value)) for at, value in one["values"]])
            for one in found["result"]
        ]

    def label_values(self, label: str, selector: str) -> list[str]:
        """Values of a label of the series that a selector matches."""
        found: list[str] = self._ask(f"label/{label}/values", **{"match[]": selector})
        return found

    def rules(self) -> dict[str, dict[str, Any]]:
        """All alerts by name, as Prometheus evaluated them last."""
        groups = self._ask("rules")["groups"]
        return {rule["name"]: rule for group in groups for rule in group["rules"]}

    def _ask(self, path: str, **arguments: Any) -> Any:
        answer = json.loads(self._get(f"/api/v1/{path}?{urllib.parse.urlencode(arguments)}"))
        assert answer["status"] == "success", answer
        return answer["data"]

    def _get(self, path: str) -> str:
        opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
        try:
            with opener.open(f"{self._url}{path}", timeout=30) as answer:
                return str(answer.read().decode())
        except urllib.error.HTTPError as error:
            if error.code == 503:
                raise
            raise AssertionError(f"{path}: {error.read().decode()}") from None


class PrometheusProcess(Program):
    """Prometheus as a process, with its data in a folder.

    Attributes:
        api: what is asked of it, once it is started.
        scraped_at: a time at which it had what every target said last; see `until_scraped`.
    """

    def __init__(
        self, folder: Path, scrapes: Sequence[dict[str, Any]] = (), rules: Sequence[dict[str, Any]] = ()
    ) -> None:
        """Prepare it; `start` starts it.

        Args:
            folder: for its configuration, log and data; blocks under `data` are answered from too.
            scrapes: `scrape_configs`, asked every second.
            rules: groups of rules, evaluated every second.
        """
        super().__init__((), Path(os.devnull), folder / "prometheus.log")
        self._folder, self.api, self.scraped_at = folder, Prometheus(""), 0.0
        self._targets = sum(len(targets["targets"]) for one in scrapes for targets in one["static_configs"])
        (folder / "rules.yaml").write_text(yaml.safe_dump({"groups": list(rules)}))
        configuration = {
            "global": {"scrape_interval": "1s", "scrape_timeout": "1s", "evaluation_interval": "1s"},
            "rule_files": ["rules.yaml"],
            "scrape_configs": list(scrapes),
        }
        (folder / "prometheus.yaml").write_text(yaml.safe_dump(configuration))

    def start(self) -> None:
        """Start it and wait until it answers.

        Raises:
            AssertionError: it has ended, or does not answer in time; with the end of its log.
        """
        (port,) = free_ports(1)
        self.api = Prometheus(f"http://127.0.0.1:{port}")
        self.command = [
            str(BINARIES / "prometheus"),
            f"--config.file={self._folder / 'prometheus.yaml'}",
            f"--storage.tsdb.path={self._folder / 'data'}",
            f"--web.listen-address=127.0.0.1:{port}",
        ]
        super().start()
        self.until(lambda: self.api.ready, "Prometheus starts")

    def until_scraped(self, times: int, since: float = 0.0) -> None:
        """Wait until every target has answered so often, the last time since then, and keep that time as `scraped_at`.

        On a busy machine a page may be late, and is none then until it is read again: what is asked of that time alone has
        the same answer whenever it is asked.

        Raises:
            AssertionError: it takes too long; with the end of the log.
        """

        def scraped() -> float:
            at = time.time() - SETTLED_SECONDS
            answered = f"sum_over_time(up[1h]) and up == 1 and timestamp(up) > {since:f}"
            counts = [value for _, value in self.api.query(answered, at)]
            return at if len(counts) == self._targets and all(count >= times for count in counts) else 0.0

        self.scraped_at = float(self.until(scraped, "all pages are scraped", SCRAPED_SECONDS))


@contextmanager
def backfilled(folder: Path) -> Iterator[tuple[Prometheus, float]]:
    """A Prometheus that knows the day of a made-up fleet, and when that day ends."""
    end = time.time() // 60 * 60
    (folder / "history.txt").write_text(history(end))
    command = ["promtool", "tsdb", "create-blocks-from", "openmetrics", "history.txt", "data"]
    done = subprocess.run(
        [BINARIES / command[0], *command[1:]],
        cwd=folder,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    process = PrometheusProcess(folder)
    try:
        process.start()
        yield process.api, end
    finally:
        process.kill()


def asked(expression: str) -> str:
    """An expression as Grafana sends it where All is chosen."""
    return re.sub(r"\$\w+", ".*", expression)


def panel_answers(
    prometheus: Prometheus, dashboard: dict[str, Any], end: float, hours: float
) -> dict[int, dict[str, list[Line]]]:
    """What the queries of each panel, by id, are answered with: at a time, or for hours before it."""
    start, step = end - hours * 3600, max(hours * 3600 / POINTS, 1.0)
    return {
        panel["id"]: {
            target["refId"]: [
                (labels, [(end, value)]) for labels, value in prometheus.query(asked(target["expr"]), end)
            ]
            if target.get("instant")
            else prometheus.query_range(asked(target["expr"]), start, end, step)
            for target in panel["targets"]
        }
        for panel in dashboard["panels"]
    }


def prometheus_or_skip() -> None:
    """Prometheus is there, or the test is skipped with a sentence."""
    if not (BINARIES / "prometheus").exists():
        pytest.skip("no Prometheus here: scripts/tools prometheus promtool builds it")
