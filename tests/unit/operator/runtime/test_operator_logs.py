from __future__ import annotations

import json
import logging

from rl_operator.runtime.logs import JsonFormatter, TextFormatter


def test_logs_have_run_and_attempt() -> None:
    record = logging.makeLogRecord(
        {"name": "rl_operator", "levelname": "INFO", "msg": "begins", "run": "sums"}
    )
    record.attempt, record.namespace = 2, "team-a"
    line = json.loads(JsonFormatter().format(record))
    assert (line["message"], line["run"], line["attempt"], line["level"]) == ("begins", "sums", 2, "info")
    assert TextFormatter().format(record).endswith("INFO    team-a/sums #2 begins")
