"""The alerts of the chart: they are PromQL about what exists, fire when they should by Prometheus' own evaluation, and are
those that the page lists."""

from __future__ import annotations

import json
import re
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml
from alert_cases import CASES as SINGLE
from alert_cases import Case
from chart_rendering import CHART, NAMESPACE, ROOT, Manifest, helm, one, refusal, render
from exported_metrics import exported, labels_of, of_operator, problems
from fleet_alert_cases import FLEET
from promtool import promtool
from serving_metrics import SERVING

PAGE = (ROOT / "docs" / "operations.md").read_text(encoding="utf-8")
ON = "alerts.enabled=true"
CASES = SINGLE + FLEET
ALERTS = re.findall(r"- alert: (\w+)", (CHART / "files" / "alerts.yaml").read_text(encoding="utf-8"))


def groups(*values: str) -> list[Manifest]:
    found: list[Manifest] = one(render(ON, *values), "PrometheusRule")["spec"]["groups"]
    return found


def rules(*values: str) -> dict[str, Manifest]:
    return {rule["alert"]: rule for group in groups(*values) for rule in group["rules"]}


def test_no_alerts_unless_asked_for() -> None:
    assert "PrometheusRule" not in {each["kind"] for each in render()}


def test_prometheus_takes_the_rules(tmp_path: Path) -> None:
    (tmp_path / "rules.yaml").write_text(yaml.safe_dump({"groups": groups()}))
    done = promtool("check", "rules", "rules.yaml", folder=tmp_path)
    assert done.returncode == 0, done.stdout + done.stderr
    assert f"{len(ALERTS)} rules found" in done.stdout


@pytest.mark.parametrize("alert", ALERTS)
def test_an_alert_asks_for_what_is_exported_and_says_what_it_means(alert: str) -> None:
    rule = rules()[alert]
    assert problems(rule["expr"], exported()) == []
    assert rule["labels"]["severity"] in ("critical", "warning", "info")
    assert rule["annotations"].keys() == {"summary", "description"}
    assert "<" not in json.dumps(rule["annotations"]) + rule.get("for", "")


def test_the_check_of_expressions_sees_mistakes() -> None:
    known = of_operator()
    assert problems("sum(", known) != []
    assert problems("1 + 1", known) != []
    assert problems('sum by (run) (rltrain_run_step{namespace="a"})', known) == []
    assert problems("sum by (node) (rltrain_run_step)", known) == ["rltrain_run_step has no label node"]
    assert problems('rate(rltrain_nothing_total{a="b"}[5m]) > 0', known) == [
        "rltrain_nothing_total is exported by nobody"
    ]
    assert problems('max(rltrain_run_step{phase="Failed"}) or vector(0)', known) == [
        "rltrain_run_step has no label phase"
    ]
    joined = (
        "max by (run, phase) (rltrain_run_phase) * on (run) group_left () max by (run) (rltrain_run_step)"
    )
    assert problems(joined, known) == []
    assert labels_of(joined, known) == {"run", "phase"}
    assert problems(f"sum by (condition) ({joined})", known) == [
        "rltrain_run_phase and rltrain_run_step has no label condition"
    ]
    assert problems("rltrain_run_phase and on (phase) rltrain_run_step", known) == [
        "rltrain_run_step has no label phase"
    ]


def test_the_list_of_serving_s_metrics_is_what_its_code_exports() -> None:
    sources = (ROOT / "trainer" / "rl_serve").rglob("*.py")
    names = {
        name for file in sources for name in re.findall(r'"(rltrain_serve_\w+)"', file.read_text("utf-8"))
    }
    if not names:
        pytest.skip("rl_serve exports no metrics of its own")
    assert {name.removesuffix("_total") for name in names} == {
        name.removesuffix("_total") for name in SERVING
    }


def document(case: Case, alerts: dict[str, Manifest]) -> dict[str, Any]:
    labels = alerts[case.alert]["labels"]
    return {
        "name": f"{case.alert}: {case.what}",
        "interval": "1m",
        "input_series": [{"series": series, "values": values} for series, values in case.series.items()],
        "alert_rule_test": [
            {
                "eval_time": f"{minute}m",
                "alertname": case.alert,
                "exp_alerts": [{"exp_labels": labels | found} for found in there],
            }
            for minute, there in case.then.items()
        ],
    }


SETTINGS = {json.dumps(case.thresholds): case.thresholds for case in CASES}


@pytest.mark.parametrize("thresholds", SETTINGS.values(), ids=SETTINGS)
def test_alerts_fire_when_they_should_and_not_else(tmp_path: Path, thresholds: dict[str, Any]) -> None:
    found = groups(*(f"alerts.thresholds.{name}={value}" for name, value in thresholds.items()))
    for rule in (rule for group in found for rule in group["rules"]):
        del rule["annotations"]  # texts have a test of their own
    alerts = {rule["alert"]: rule for group in found for rule in group["rules"]}
    cases = [case for case in CASES if case.thresholds == thresholds]
    files = []
    # A file for each alert: promtool evaluates all rules that a file names in each of its tests.
    for name in sorted({case.alert for case in cases}):
        only = [group | {"rules": [one for one in group["rules"] if one["alert"] == name]} for group in found]
        (tmp_path / f"{name}-rules.yaml").write_text(yaml.safe_dump({"groups": only}))
        tests = [document(case, alerts) for case in cases if case.alert == name]
        test = {"rule_files": [f"{name}-rules.yaml"], "evaluation_interval": "1m", "tests": tests}
        (tmp_path / f"{name}.yaml").write_text(yaml.safe_dump(test, sort_keys=False))
        files.append(f"{name}.yaml")
    done = promtool("test", "rules", *files, folder=tmp_path)
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.count("SUCCESS") == len(files)


def test_there_is_a_case_in_which_each_alert_fires_and_one_in_which_it_does_not() -> None:
    fires = {case.alert for case in CASES if any(case.then.values())}
    quiet = {case.alert for case in CASES if not all(case.then.values())}
    assert fires == set(ALERTS)
    assert quiet == set(ALERTS) - {"RLTrainOperatorRefused"}, "that one's other series must not fire"


def test_texts_name_object_and_figure(tmp_path: Path) -> None:
    (tmp_path / "rules.yaml").write_text(yaml.safe_dump({"groups": groups()}))
    texts = {
        "summary": "Policy service a/s fails",
        "description": "50% of its requests end in an error of the server's (5xx).",
    }
    series = {
        f'ray_rltrain_serve_requests_total{{namespace="a", service="s", code="{c}"}}' for c in (200, 500)
    }
    labels = {"namespace": "a", "service": "s", "severity": "critical"}
    expected = {"exp_labels": labels, "exp_annotations": texts}
    test = {
        "interval": "1m",
        "input_series": [{"series": one, "values": "0+60x30"} for one in sorted(series)],
        "alert_rule_test": [
            {"eval_time": "20m", "alertname": "RLTrainServiceErrors", "exp_alerts": [expected]}
        ],
    }
    (tmp_path / "test.yaml").write_text(
        yaml.safe_dump({"rule_files": ["rules.yaml"], "evaluation_interval": "1m", "tests": [test]})
    )
    done = promtool("test", "rules", "test.yaml", folder=tmp_path)
    assert done.returncode == 0, done.stdout + done.stderr


def test_alerts_can_be_labelled_and_left_out() -> None:
    found = rules(
        "alerts.labels.release=prometheus",
        "alerts.alertLabels.team=ml",
        'alerts.disabled=["RLTrainRunStale","RLTrainOperatorDown"]',
    )
    assert found.keys() == set(ALERTS) - {"RLTrainRunStale", "RLTrainOperatorDown"}
    assert {rule["labels"]["team"] for rule in found.values()} == {"ml"}
    rule = one(render(ON, "alerts.labels.release=prometheus"), "PrometheusRule")
    assert rule["metadata"]["labels"]["release"] == "prometheus"
    empty = [f'"{alert}"' for alert in ALERTS if alert.startswith("RLTrainOperator")]
    assert [g["name"] for g in groups(f"alerts.disabled=[{','.join(empty)}]")] == [
        "rltrain-runs",
        "rltrain-fleet",
        "rltrain-services",
    ]


def test_every_threshold_counts() -> None:
    text = (CHART / "files" / "alerts.yaml").read_text(encoding="utf-8")
    values = yaml.safe_load((CHART / "values.yaml").read_text(encoding="utf-8"))
    assert set(re.findall(r"<(\w+)>", text)) - {"name"} == set(values["alerts"]["thresholds"])


@pytest.mark.parametrize(
    ("value", "sentence"),
    [
        ("alerts.thresholds.runStuckFor=soon", "at '/alerts/thresholds/runStuckFor': 'soon' does not match"),
        ("alerts.thresholds.runStuckFor=0m", "at '/alerts/thresholds/runStuckFor': '0m' does not match"),
        (
            "alerts.thresholds.serviceErrorRatio=5",
            "at '/alerts/thresholds/serviceErrorRatio': maximum: got 5",
        ),
        (
            "alerts.thresholds.operatorErrors=few",
            "at '/alerts/thresholds/operatorErrors': 'few' does not match",
        ),
        ("alerts.thresholds.runStuck=5m", "additional properties 'runStuck' not allowed"),
        ('alerts.disabled=["RLTrainRunStall"]', "alerts.disabled: found RLTrainRunStall, allowed: RLTrain"),
    ],
)
def test_wrong_values_are_refused(value: str, sentence: str) -> None:
    assert sentence in refusal(ON, value)


@pytest.mark.parametrize(
    "value",
    [
        ON,
        "metrics.podMonitor.enabled=true",
        "metrics.serviceMonitor.enabled=true",
        "metrics.servicePodMonitor.enabled=true",
    ],
)
def test_a_cluster_without_the_prometheus_operator_is_told_so(value: str) -> None:
    def template(*apis: str) -> subprocess.CompletedProcess[str]:
        more = [part for api in apis for part in ("--api-versions", api)]
        return helm("template", "rltrain", str(CHART), "--namespace", NAMESPACE, "--set", value, *more)

    cluster = "apiregistration.k8s.io/v1"
    without = template(cluster)
    assert without.returncode != 0
    path = value.partition("=")[0]
    assert f"{path}: this cluster does not know monitoring.coreos.com/v1; install the" in without.stderr
    assert template(cluster, "monitoring.coreos.com/v1").returncode == 0
    assert template().returncode == 0, "without a cluster nobody knows"


def test_the_page_lists_the_alerts() -> None:
    table = PAGE.partition("## Alerts")[2].partition("\n## ")[0]
    rows = re.findall(r"^\| `(\w+)` \| (\w+) \| ([^|]+) \| ([^|]*)\|", table, flags=re.M)
    assert [(name, severity) for name, severity, _, _ in rows] == [
        (name, rule["labels"]["severity"]) for name, rule in rules().items()
    ]
    text = yaml.safe_load((CHART / "files" / "alerts.yaml").read_text(encoding="utf-8"))
    raw = {rule["alert"]: json.dumps(rule) for group in text["groups"] for rule in group["rules"]}
    defaults = yaml.safe_load((CHART / "values.yaml").read_text(encoding="utf-8"))["alerts"]["thresholds"]
    for name, _, _, cell in rows:
        listed = dict(re.findall(r"`(\w+)` ([^,|]+?)(?:,|$)", cell.strip()))
        used = set(re.findall(r"<(\w+)>", raw[name]))
        assert listed == {name: str(defaults[name]) for name in used}, name
