"""No tenant makes more series than there are answers."""

from __future__ import annotations

from rl_operator.runtime.metrics import Metrics


def test_whatever_drivers_answer_there_are_few_series() -> None:
    metrics = Metrics()
    for status in [*map(str, range(100, 1000)), "error"]:
        metrics.driver_called("status", status)
    found = {
        sample.labels["result"]: sample.value
        for metric in metrics.driver_calls.collect()
        for sample in metric.samples
        if sample.name.endswith("_total")
    }
    kept = {"200": 1, "401": 1, "409": 1, "error": 1}
    classes = {f"{first}xx": 100 for first in range(1, 10)}
    assert found == kept | classes | {"2xx": 99, "4xx": 98}
