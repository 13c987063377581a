"""Which policy is next, and what is worse than the one before."""

from __future__ import annotations

from typing import Any

import pytest
from service_worlds import NOW, checkpoint

from rl_api.service import RLPolicyService, ServiceSpec
from rl_api.service_status import Baseline, Candidate, ServiceStatus, Serving
from rl_operator.decide.verdicts import choose, dies, worse
from rl_operator.model.service import Control, Replica, VersionFigures

PROBE = {
    "gate": {"probe": {"configMap": "probe", "maxDrop": 0.1}},
    "rollback": {"window": "60s", "minRequests": 10},
}


def spec_of(**promotion: Any) -> ServiceSpec:
    document = {
        "metadata": {"name": "chat"},
        "spec": {"from": {"run": "sums"}, "auth": {"anonymous": True}, "promotion": promotion},
    }
    return RLPolicyService.model_validate(document).spec


@pytest.mark.parametrize(
    ("promotion", "serving", "refused", "expected"),
    [
        ({}, None, (), 30),
        ({}, None, (30,), 20),
        ({}, 20, (), 30),
        ({}, 30, (), None),
        ({}, 20, (30,), None),
        ({"mode": "manual"}, None, (), 30),
        ({"mode": "manual"}, 20, (), None),
        ({"mode": "manual", "step": 10}, 30, (), 10),
        ({"mode": "manual", "step": 30}, 30, (), None),
        ({"mode": "manual", "step": 10}, 30, (10,), None),
        ({"mode": "manual", "step": 15}, 30, (), None),
    ],
)
def test_who_is_next(
    promotion: dict[str, Any], serving: int | None, refused: tuple[int, ...], expected: int | None
) -> None:
    known = Serving(**dict(checkpoint(serving))) if serving is not None else None
    status = ServiceStatus(serving=known, refused=[checkpoint(step).digest for step in refused])
    found = choose(spec_of(**promotion), status, [checkpoint(step) for step in (30, 20, 10)])
    assert (found.step if found is not None else None) == expected


@pytest.mark.parametrize(
    ("baseline", "figures", "words"),
    [
        (None, VersionFigures(), ""),
        (
            None,
            VersionFigures(requests=10, errors=1),
            "1 of 10 requests failed (10.0%), allowed: at most 2.0%",
        ),
        (Baseline(requests=10, errors=1), VersionFigures(requests=10, errors=1), ""),
        (
            Baseline(token_seconds=0.01),
            VersionFigures(requests=10, token_seconds=0.0301),
            "its time per token is 30.1 ms",
        ),
        (Baseline(token_seconds=0.01), VersionFigures(requests=9, token_seconds=1.0), ""),
        (Baseline(), VersionFigures(requests=10, token_seconds=1.0), ""),
        (Baseline(probe=0.5), VersionFigures(probe=0.41), ""),
        (Baseline(probe=0.5), VersionFigures(probe=0.39), "it scores 0.390 in the probe"),
        (None, VersionFigures(probe=0.0), ""),
    ],
)
def test_what_is_worse(baseline: Baseline | None, figures: VersionFigures, words: str) -> None:
    found = worse(spec_of(**PROBE), baseline, figures)
    assert found.startswith(words)
    assert bool(found) == bool(words)


@pytest.mark.parametrize(
    ("living", "deaths", "words"),
    [
        (1, 2, ""),
        (1, 3, "copies died with it 3 times, allowed: fewer than 3"),
        (5, 3, ""),  # of eight, three were taken away: it may be their nodes
        (4, 4, "copies died with it 4 times, allowed: fewer than 4"),
        (0, 8, ""),  # nobody is heard of
    ],
)
def test_deaths_are_of_the_policy_where_half_of_the_copies_die(living: int, deaths: int, words: str) -> None:
    candidate = Candidate(**dict(checkpoint(30)), state="Watching")
    figures = {candidate.version: VersionFigures(deaths=deaths)}
    control = Control(NOW, "cluster", tuple(Replica(str(one)) for one in range(living)), figures)
    assert dies(control, candidate) == words
