"""`rltrain top` against a real API server."""

from __future__ import annotations

import json

import pytest
from cluster_runs import condition, set_status
from kube import KubeApi

import rl_cli.top
from rl_cli.main import main

pytestmark = pytest.mark.usefixtures("kubeconfig")

USAGE = {
    "accelerators": 12.0,
    "trained": 7200.0,
    "pools": {"h100": {"accelerators": 12.0, "trained": 7200.0}},
    "updatedAt": "2026-01-02T03:04:00Z",
}


def test_who_holds_and_who_waits(kube: KubeApi, run: str, capsys: pytest.CaptureFixture[str]) -> None:
    status = {"phase": "Training", "progress": {"samplerBusy": 0.9}, "usage": USAGE}
    set_status(kube, run, conditions=[condition("Accepted", "True")], **status)
    assert main(["top", "-n", run]) == 0
    head, _, titles, line = capsys.readouterr().out.splitlines()
    assert head == "1 run holds 12 accelerators, 0 wait; h100 12"
    assert titles.split()[:2] == ["RUN", "PHASE"]
    assert line.split()[:8] == ["arithmetic", "Training", "12", "h100", "-", "90%", "-", "2.0h"]
    assert main(["top", "-A", "--by", "team"]) == 0
    assert any(text.split()[:4] == [run, "1", "0", "12"] for text in capsys.readouterr().out.splitlines())


def test_all_pages_are_read(
    kube: KubeApi, run: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    found = kube.get("rlrun", "arithmetic", "-n", run)
    copies = [
        {**found, "metadata": {"name": f"copy-{index}", "namespace": run}, "status": None}
        for index in range(9)
    ]
    kube.apply(*({key: value for key, value in one.items() if value is not None} for one in copies))
    monkeypatch.setattr(rl_cli.top, "_PAGE", 4)
    assert main(["top", "-n", run, "-o", "json", "--sort", "name"]) == 0
    names = [one["name"] for one in json.loads(capsys.readouterr().out)["runs"]]
    assert names == ["arithmetic", *(f"copy-{index}" for index in range(9))]
