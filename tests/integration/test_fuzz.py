"""Odd objects for three minutes: the operator goes on, and so do the runs of others. `make fuzz` does it for longer."""

from __future__ import annotations

from pathlib import Path

import pytest
from fuzzing import Fuzzing
from kube import KubeApi
from operator_process import OperatorProcess

SECONDS, SEED = 180.0, 1


@pytest.mark.timeout(600)
def test_nothing_that_a_user_sends_stops_the_operator_or_anybody_else(
    kube: KubeApi, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    odd, honest = kube.new_namespace("fuzz"), kube.new_namespace("honest")
    scope = [f"--namespace={namespace}" for namespace in (odd, honest)]
    operator = OperatorProcess(kube.kubeconfig, tmp_path / "operator.log", *scope)
    fuzzing = Fuzzing(kube, operator, odd, honest)
    try:
        problems = fuzzing.run(SECONDS, SEED)
    finally:
        operator.kill()
        fuzzing.clean()
    with capsys.disabled():
        print(f"\n{fuzzing.summary}")
    assert problems == []
    taken, refused = (
        sum(count for what, count in fuzzing.answers.items() if what.endswith(f" {word}"))
        for word in ("taken", "refused")
    )
    assert min(taken, refused) >= 10
    assert fuzzing.answers["RLTrainingRun taken"] >= 5
