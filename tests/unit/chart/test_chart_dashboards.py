"""The dashboards of the chart: fields that Grafana knows, panels with a place of their own, queries that are answered."""

from __future__ import annotations

import json
import re
from copy import deepcopy
from itertools import product
from pathlib import Path
from typing import Any

import pytest
import yaml
from chart_rendering import CHART, one, render
from exported_metrics import exported, labels_of, problems
from grafana_foundation_sdk.cog.encoder import JSONEncoder
from grafana_foundation_sdk.cog.plugins import register_default_plugins
from grafana_foundation_sdk.models.dashboard import Dashboard
from promtool import promtool

FILES = sorted((CHART / "files" / "dashboards").glob("*.json"))
DASHBOARDS = {file.stem: json.loads(file.read_text(encoding="utf-8")) for file in FILES}
UNITS = {"short", "s", "percentunit", "reqps"}
"""Of Grafana's, by its own ids."""

WIDTH = 24
"""Columns of Grafana's grid."""

VALUES = {
    "outcome": ["trained", "started", "evicted", "failed"],
    **{"namespace": ["a"], "pod": ["p", "q"], "version": ["v1", "v2"], "code": ["200", "503"]},
    **{"state": ["ready", "desired"], "le": ["1", "+Inf"], "verb": ["list"], "phase": ["Training"]},
}
"""Values of labels, where there is more to say than one."""

register_default_plugins()
every_dashboard = pytest.mark.parametrize("name", DASHBOARDS)


def unknown(found: Any, known: Any, path: str = "") -> list[str]:
    """What Grafana's own model of a dashboard did not keep."""
    if isinstance(found, dict) and isinstance(known, dict):
        here = [f"{path}.{key}" for key in found if key not in known]
        both = found.keys() & known.keys()
        return here + [one for key in both for one in unknown(found[key], known[key], f"{path}.{key}")]
    if isinstance(found, list) and isinstance(known, list) and len(found) == len(known):
        pairs = enumerate(zip(found, known, strict=True))
        return [one for i, (left, right) in pairs for one in unknown(left, right, f"{path}[{i}]")]
    return [] if found == known else [path]


def read_by_grafana(dashboard: dict[str, Any]) -> Any:
    return json.loads(JSONEncoder().encode(Dashboard.from_json(deepcopy(dashboard))))


def targets(dashboard: dict[str, Any]) -> list[dict[str, Any]]:
    return [target for panel in dashboard["panels"] for target in panel["targets"]]


def test_the_chart_brings_all_of_them() -> None:
    config = one(render("grafana.dashboard.enabled=true"), "ConfigMap", "rltrain-dashboard")
    assert config["metadata"]["labels"]["grafana_dashboard"] == "1"
    assert {name: json.loads(text) for name, text in config["data"].items()} == {
        f"rltrain-{name}.json": dashboard for name, dashboard in DASHBOARDS.items()
    }
    assert DASHBOARDS.keys() == {"fleet", "operator", "runs", "services"}
    assert {d["uid"] for d in DASHBOARDS.values()} == {f"rltrain-{name}" for name in DASHBOARDS}


@every_dashboard
def test_grafana_knows_every_field(name: str) -> None:
    dashboard = DASHBOARDS[name]
    assert unknown(dashboard, read_by_grafana(dashboard)) == []
    wrong = deepcopy(dashboard)
    wrong["panels"][0]["fieldConfig"]["defaults"]["units"] = "s"
    wrong["panels"][1]["targets"][0]["expression"] = "1"
    assert sorted(unknown(wrong, read_by_grafana(wrong))) == [
        ".panels[0].fieldConfig.defaults.units",
        ".panels[1].targets[0].expression",
    ]


@every_dashboard
def test_panels_have_a_place_of_their_own(name: str) -> None:
    panels = DASHBOARDS[name]["panels"]
    assert len(panels) >= 10
    for field in ("id", "title"):
        assert len({panel[field] for panel in panels}) == len(panels)
    taken: set[tuple[int, int]] = set()
    for panel in panels:
        place = panel["gridPos"]
        assert place["x"] >= 0 and place["x"] + place["w"] <= WIDTH
        cells = set(
            product(range(place["x"], place["x"] + place["w"]), range(place["y"], place["y"] + place["h"]))
        )
        assert not cells & taken, panel["title"]
        taken |= cells
        assert panel["fieldConfig"]["defaults"]["unit"] in UNITS
        assert panel["datasource"] == {"type": "prometheus", "uid": "${datasource}"}
        assert len({target["refId"] for target in panel["targets"]}) == len(panel["targets"]) >= 1


@every_dashboard
def test_queries_ask_for_what_is_exported(name: str) -> None:
    dashboard = DASHBOARDS[name]
    variables = {one["name"] for one in dashboard["templating"]["list"]}
    for target in targets(dashboard):
        assert problems(target["expr"], exported()) == [], target["expr"]
        assert set(re.findall(r"\$(\w+)", target["expr"])) <= variables
        shown = set(re.findall(r"\{\{(\w+)\}\}", target["legendFormat"]))
        assert shown <= labels_of(target["expr"], exported()), target["legendFormat"]
    for variable in dashboard["templating"]["list"]:
        if variable["type"] == "query":
            text = variable["query"]["query"]
            match = re.fullmatch(r"label_values\((.*), (\w+)\)", text)
            assert match is not None, text
            assert problems(match[1], exported()) == []
            assert match[2] in exported()[match[1].partition("{")[0]] | {"namespace"}


def test_prometheus_answers_every_query(tmp_path: Path) -> None:
    """With two pods and two versions, so that what matches no one-to-one, or counts nothing, shows."""
    series = []
    for metric, labels in exported().items():
        names = sorted(labels | {"namespace", "pod"})
        for values in product(*(VALUES.get(label, ["x"]) for label in names)):
            text = ", ".join(f'{label}="{value}"' for label, value in zip(names, values, strict=True))
            series.append({"series": f"{metric}{{{text}}}", "values": "0+1x90"})
    queries = [
        re.sub(r"\$(namespace|run|service)", ".*", target["expr"])
        for dashboard in DASHBOARDS.values()
        for target in targets(dashboard)
    ]
    answered = [
        {
            "expr": f"clamp_max(count({query}), 1)",
            "eval_time": "80m",
            "exp_samples": [{"labels": "{}", "value": 1}],
        }
        for query in queries
    ]
    test = {"interval": "1m", "input_series": series, "promql_expr_test": answered}
    (tmp_path / "test.yaml").write_text(yaml.safe_dump({"evaluation_interval": "1m", "tests": [test]}))
    done = promtool("test", "rules", "test.yaml", folder=tmp_path)
    assert done.returncode == 0, done.stdout + done.stderr
