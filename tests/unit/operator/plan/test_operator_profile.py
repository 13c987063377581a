from __future__ import annotations

from typing import Any

import pytest
from operator_worlds import SETTINGS, make_plan, make_profile, make_run, refused

from rl_operator.plan.effective import Effective, plan


class TestProfiles:
    def test_defaults_are_under_the_runs_own_values(self) -> None:
        defaults = {"retry": {"limit": 7}, "learner": {"tokensPerMicroBatch": 512, "threads": 8}}
        effective = make_plan(
            {"learner": {"threads": 2}}, make_profile(default=True, defaults=defaults, queue="batch")
        )
        assert effective.spec.retry.limit == 7
        assert effective.spec.learner.tokens_per_micro_batch == 512
        assert effective.spec.learner.threads == 2, "the run's own"
        assert effective.spec.scheduling.queue == "batch"
        assert effective.spec.profile == "shared"

    def test_the_runs_storage_replaces_the_profiles(self) -> None:
        defaults = {"checkpoint": {"keep": 9, "storage": {"s3": "s3://bucket/folder"}}}
        own = {"checkpoint": {"storage": {"persistentVolumeClaim": "disk"}}}
        effective = make_plan(own, make_profile(default=True, defaults=defaults))
        assert effective.claim == "disk"
        assert effective.spec.checkpoint is not None
        assert effective.spec.checkpoint.keep == 9

    def test_a_profile_by_name(self) -> None:
        profiles = [make_profile("a", default=True), make_profile("b", queue="q")]
        found = plan(make_run({"profile": "b"}), profiles, SETTINGS)
        assert isinstance(found, Effective)
        assert found.spec.scheduling.queue == "q"

    @pytest.mark.parametrize(
        ("spec", "profiles", "reason", "sentence"),
        [
            (
                {"profile": "none"},
                [make_profile("b"), make_profile("a")],
                "ProfileMissing",
                "(there are: a, b)",
            ),
            ({"profile": "none"}, [], "ProfileMissing", "(there are: none)"),
            ({"profile": 5}, [], "ProfileMissing", "found 5"),
            ({"profile": {"a": 1}}, [make_profile("a")], "ProfileMissing", "(there are: a)"),
            (
                {"profile": "a"},
                [{"metadata": {"name": "a"}}],
                "ProfileInvalid",
                "RLTrainingProfile a: spec: ",
            ),
            (
                {"profile": "a"},
                [make_profile("a") | {"kind": "RLTrainingRun"}],
                "ProfileInvalid",
                "RLTrainingProfile a: ",
            ),
            (
                {},
                [make_profile("b", default=True), make_profile("a", default=True)],
                "ProfileMissing",
                "a, b",
            ),
            (
                {},
                [make_profile("b"), make_profile("a")],
                "ProfileMissing",
                "spec.profile: missing, required as no profile is marked default (there are: a, b); name one of them",
            ),
            (
                {"profile": "a"},
                [make_profile("a", pools=[])],
                "ProfileInvalid",
                "RLTrainingProfile a: spec.pools",
            ),
        ],
    )
    def test_missing_and_broken_ones(
        self, spec: dict[str, Any], profiles: list[dict[str, Any]], reason: str, sentence: str
    ) -> None:
        found = refused(spec, *profiles)
        assert found.reason == reason
        assert sentence in found.message

    def test_profiles_that_cannot_be_read_disturb_nobody_else(self) -> None:
        broken: list[dict[str, Any]] = [
            {},
            {"metadata": None, "spec": None},
            make_profile("odd", default="yes"),
        ]
        assert make_plan({}).spec.profile is None
        found = plan(make_run(), [*broken, make_profile("b"), make_profile("a", default=True)], SETTINGS)
        assert isinstance(found, Effective)
        assert found.spec.profile == "a"

    def test_the_built_in_profile_has_one_pool_without_limits(self) -> None:
        effective = make_plan()
        assert [role.where for role in effective.roles] == ["pool default"] * 3
        assert (
            "spec.sampler.pools[0]: found 'x', allowed: a pool of the built-in profile: default"
            in refused({"sampler": {"pools": ["x"]}}).message
        )

    def test_the_hash_follows_the_spec_and_not_the_wish_to_suspend(self) -> None:
        assert make_plan().digest == make_plan({"suspend": True}).digest
        assert make_plan().digest != make_plan({"seed": 1}).digest
        changed = make_profile(default=True, defaults={"retry": {"limit": 9}})
        assert make_plan({}, make_profile(default=True)).digest != make_plan({}, changed).digest


@pytest.mark.parametrize(
    "task",
    [
        {"tools": [{"type": "function"}]},
        {"chatTemplateKwargs": {"enable_thinking": False}},
        {"observationRole": "tool"},
    ],
)
def test_a_later_field_counts_in_the_hash_of_a_spec_where_it_says_something(task: dict[str, object]) -> None:
    assert make_plan({"task": task}).digest != make_plan().digest
