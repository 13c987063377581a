"""Six hundred odd objects: the operator goes on, and so do the runs of others. `make fuzz` sends them for half an hour."""

from __future__ import annotations

from pathlib import Path

import pytest
from fuzzing import PATHS, Fuzzing
from kube import KubeApi
from operator_process import OperatorProcess

OBJECTS, SEED = 600, 1
# A bound for a machine under load; an idle one sends them in a fraction of it.
SECONDS = 1500.0
# Runs of somebody else that are tried meanwhile, at least.
HONEST = 5


@pytest.mark.timeout(1800)
def test_nothing_that_a_user_sends_stops_the_operator_or_anybody_else(
    kube: KubeApi, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    odd, honest = kube.new_namespace("fuzz"), kube.new_namespace("honest")
    scope = [f"--namespace={namespace}" for namespace in (odd, honest)]
    operator = OperatorProcess(kube.kubeconfig, tmp_path / "operator.log", *scope)
    fuzzing = Fuzzing(kube, operator, odd, honest)
    try:
        problems = fuzzing.run(SECONDS, SEED, OBJECTS, HONEST)
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
    assert fuzzing.sent == OBJECTS
    assert min(taken, refused) >= 50
    assert len(fuzzing.seconds) >= HONEST
    assert {kind for kind in PATHS if not fuzzing.answers[f"{kind} taken"]} == set()
    assert fuzzing.answers["RLTrainingRun taken"] >= 5
