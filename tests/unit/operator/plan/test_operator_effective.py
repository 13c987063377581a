"""The run as it is carried out: everything written out that profile and operator decide."""

from __future__ import annotations

from typing import Any

import pytest
from operator_worlds import GPU_POOLS, SETTINGS, make_plan, make_profile, make_run, refused

from rl_operator.plan.effective import Effective, plan
from rl_operator.plan.refused import Refused


@pytest.mark.parametrize("run", [{}, {"metadata": None, "spec": None}, make_run() | {"spec": "text"}])
def test_what_is_no_run_is_refused(run: dict[str, Any]) -> None:
    found = plan(run, [], SETTINGS)
    assert isinstance(found, Refused)
    assert found.reason == "InvalidSpec"


def test_serving_is_another_kind() -> None:
    assert refused({"workload": "Service"}) == Refused(
        "Unsupported",
        "spec.workload: found 'Service', allowed: Job or Cluster; to serve a policy, apply an RLPolicyService",
    )


def test_whose_run_it_is() -> None:
    effective = make_plan()
    assert (effective.name, effective.namespace, effective.uid) == ("sums", "team-a", "12345678-90ab")
    bare = plan(make_run() | {"metadata": {"name": "sums"}}, [], SETTINGS)
    assert isinstance(bare, Effective)
    assert (bare.namespace, bare.uid) == ("default", "")


def test_what_the_profile_and_the_operator_fill_in() -> None:
    profile = make_profile(default=True, pools=GPU_POOLS, queue="batch", images={"cpu": "c:1", "gpu": "g:1"})
    spec = make_plan({}, profile).spec
    assert (spec.profile, spec.image, spec.scheduling.queue, spec.server.port) == (
        "shared",
        "g:1",
        "batch",
        8090,
    )
    own = make_plan(
        {"image": "mine:2", "scheduling": {"queue": "own"}, "server": {"port": 9000}}, profile
    ).spec
    assert (own.image, own.scheduling.queue, own.server.port) == ("mine:2", "own", 9000)
    program = make_plan({"trainer": {"kind": "command", "command": ["python"]}}, profile).spec
    assert program.image == "c:1", "that of the head, which is alone"


def test_a_driver_that_answers_where_it_did_when_it_began() -> None:
    effective = make_plan()
    moved = effective.answering_at(9000)
    assert (moved.status_port, effective.status_port) == (9000, 8090)
    assert moved.spec.model_copy(update={"server": effective.spec.server}) == effective.spec


class TestHash:
    def test_the_order_of_keys_does_not_count(self) -> None:
        one, other = ({"task": {"args": dict.fromkeys(keys, 1)}} for keys in ("ab", "ba"))
        assert make_plan(one).digest == make_plan(other).digest
        assert len(make_plan().digest) == 16

    def test_what_a_run_says_of_a_later_field_counts_and_not_that_there_is_one(self) -> None:
        """A pinned value: a run that an older version has begun is the same run for the next."""
        assert make_plan().digest == "fdcc678d5f0ece1b"
        said = ({}, {"a": 1}, {"a": 2})
        digests = {make_plan({"task": {"chatTemplateKwargs": words}}).digest for words in said}
        assert len(digests) == 3
        assert make_plan({"scheduling": {"encryption": True}}).digest not in digests

    def test_a_profile_has_a_hash_of_its_own(self) -> None:
        shared = make_plan({}, make_profile(default=True))
        assert len(shared.profile_digest) == 16
        others = (
            make_plan(),
            make_plan({}, make_profile("other", default=True)),
            make_plan({}, make_profile(default=True, images={"gpu": "unused:1"})),
        )
        assert shared.profile_digest not in {one.profile_digest for one in others}
        assert make_plan({"seed": 1}, make_profile(default=True)).profile_digest == shared.profile_digest
