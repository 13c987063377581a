"""A real Prometheus: it scrapes what a test names, loads rules, and answers queries."""

from __future__ import annotations

import json
import os
import urllib.parse
import urllib.request
from pathlib import Path
from typing import Any, Final

import pytest
import yaml
from operator_process import Program
from ports import free_ports

REPOSITORY: Final = Path(__file__).resolve().parents[2]
BINARY: Final = REPOSITORY / ".tools" / "bin" / "prometheus"

Sample = tuple[dict[str, str], float]
"""Labels and a value."""

Line = tuple[dict[str, str], list[tuple[float, float]]]
"""Labels, and values by time."""


class PrometheusProcess(Program):
    """Prometheus as a process, with its data in a folder."""

    def __init__(self, folder: Path, scrapes: list[dict[str, Any]], rules: list[dict[str, Any]]) -> None:
        """Prepare it; `start` starts it.

        Args:
            folder: for its configuration, log and data; blocks under `data` are answered from too.
            scrapes: `scrape_configs`, asked every second.
            rules: groups of rules, evaluated every second.
        """
        super().__init__((), Path(os.devnull), folder / "prometheus.log")
        self._folder, self._url = folder, ""
        self._targets = sum(len(targets["targets"]) for one in scrapes for targets in one["static_configs"])
        (folder / "rules.yaml").write_text(yaml.safe_dump({"groups": rules}))
        configuration = {
            "global": {"scrape_interval": "1s", "scrape_timeout": "1s", "evaluation_interval": "1s"},
            "rule_files": ["rules.yaml"],
            "scrape_configs": scrapes,
        }
        (folder / "prometheus.yaml").write_text(yaml.safe_dump(configuration))

    def start(self) -> None:
        """Start it and wait until it answers.

        Raises:
            AssertionError: it has ended, or does not answer in time; with the end of its log.
        """
        (port,) = free_ports(1)
        self._url = f"http://127.0.0.1:{port}"
        self.command = [
            str(BINARY),
            f"--config.file={self._folder / 'prometheus.yaml'}",
            f"--storage.tsdb.path={self._folder / 'data'}",
            "--storage.tsdb.retention.time=100y",
            f"--web.listen-address=127.0.0.1:{port}",
        ]
        super().start()
        self.until(self._ready, "Prometheus starts")

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

    def scraped(self, times: int) -> bool:
        """Whether every target has answered so often."""
        counts = [value for _, value in self.query("sum_over_time(up[1h])")]
        return len(counts) == self._targets and all(count >= times for count in counts)

    def _ready(self) -> bool:
        try:
            return self._get("/-/ready").startswith("Prometheus Server is Ready")
        except OSError:
            return False

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


def prometheus_or_skip() -> None:
    """Prometheus is there, or the test is skipped with a sentence."""
    if not BINARY.exists():
        pytest.skip("no Prometheus here: scripts/tools prometheus builds it")
