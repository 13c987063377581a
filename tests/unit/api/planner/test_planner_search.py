"""The search over a chain of stages: what it finds, and that it is never slower than RLinf's published rule."""

from __future__ import annotations

import random
from dataclasses import replace
from itertools import pairwise, product

import pytest
from rlinf_rule import RuleStage, as_stages, rollout, rule, scaled

from rl_api.planner.search import Stage, counts_of, search, words

POWERS = (1, 2, 4, 8, 16, 32, 64, 128)


def _published(seconds: tuple[float, float, float], devices: int) -> list[RuleStage]:
    """Costs of rollout, inference and training as in RLinf's own test."""
    sizes = [count for count in POWERS if count <= devices]
    groups = 512
    return [
        RuleStage(
            "rollout",
            {
                count: rollout(seconds[0], devices, count, answers=512 * 16, at_once=128) / groups
                for count in range(1, devices + 1)
            },
        ),
        *(
            RuleStage(name, {count: scaled(cost, devices, count) / groups for count in sizes})
            for name, cost in (("inference", seconds[1]), ("training", seconds[2]))
        ),
    ]


def _random(rng: random.Random, devices: int, stages: int) -> list[RuleStage]:
    made = []
    for index in range(stages):
        cost = rng.uniform(5, 300)
        if index == 0:
            at_once = rng.choice((16, 64, 256))
            group = {
                count: rollout(cost, devices, count, answers=64 * devices, at_once=at_once) / 64
                for count in range(1, devices + 1)
            }
        else:
            group = {count: scaled(cost, devices, count) / 64 for count in POWERS if count <= devices}
        made.append(RuleStage(f"stage {index}", group))
    return made


def test_rlinfs_own_test_is_found_by_its_rule_and_bettered_by_the_search() -> None:
    stages = _published((224.0, 10.0, 101.0), 128)
    seconds, devices = rule(stages, 128, 512)
    assert seconds == pytest.approx(289.1, abs=0.05)
    assert devices == {"rollout": 80, "inference": 16, "training": 32}
    found = search(as_stages(stages, 512), 128, 512).best[0]
    assert found.total < seconds


def test_the_example_of_rlinfs_documentation_is_collocated() -> None:
    """95.7, 30.8 and 59.9 s, on 8 devices in fours, of which three stages cannot have any each: all on all devices."""
    stages = [
        RuleStage(stage.name, {count: stage.group[count] for count in (4, 8)})
        for stage in _published((95.7, 30.8, 59.9), 8)
    ]
    seconds, devices = rule(stages, 8, 512)
    assert (seconds, set(devices.values())) == (pytest.approx(186.4), {8})
    assert search(as_stages(stages, 512), 8, 512).best[0].total <= seconds * (1 + 1e-9)


@pytest.mark.parametrize(
    ("devices", "stages", "chains"),
    [((4, 8), (2, 3, 4), 80), ((64, 128), (3, 4, 5), 25)],
    ids=["every number is tried", "some are"],
)
def test_never_slower_than_rlinfs_rule_on_random_profiles(
    devices: tuple[int, ...], stages: tuple[int, ...], chains: int
) -> None:
    """The rule tries every number of devices, and the search only some where there are many."""
    rng = random.Random(1)
    better = 0
    for _ in range(chains):
        count, length = rng.choice(devices), rng.choice(stages)
        made = _random(rng, count, length)
        theirs, _ = rule(made, count, 64)
        ours = search(as_stages(made, 64), count, 64).best[0]
        assert ours.total <= theirs * (1 + 1e-9), (words(ours.made), theirs)
        better += ours.total < theirs * 0.99
    assert better >= chains / 8


def test_of_many_devices_each_stage_may_have_any_number_that_exists_for_it() -> None:
    """Where each has devices of its own, which can be tried one by one."""
    rng = random.Random(1)
    for _ in range(60):
        stages = []
        for index in range(3):
            counts = sorted(rng.sample(range(3, 40), 6))
            parts = {count: (rng.uniform(1, 2), rng.uniform(5, 60) / count) for count in counts}
            stages.append(Stage(f"stage {index}", dict.fromkeys(counts, 1000.0), parts))
        best = min(
            sum(first for _, (first, _) in ways) + 15 * max(period for _, (_, period) in ways)
            for ways in product(*(stage.streamed.items() for stage in stages))
            if sum(count for count, _ in ways) <= 60
        )
        found = search(stages, 60, 16).best[0]
        assert found.total <= best * (1 + 1e-9), words(found.made)


def test_no_more_devices_than_there_are_and_none_twice() -> None:
    rng = random.Random(2)
    for _ in range(20):
        made = _random(rng, 8, 3)
        for element in search(as_stages(made, 64), 8, 64).best:
            assert _used(element.made) <= 8, words(element.made)
            assert _stages(element.made) == {stage.name for stage in made}


def _stages(made: tuple[object, ...]) -> set[str]:
    if made[0] in ("whole", "parts"):
        return {str(made[1])}
    return {name for one in made[1:] if isinstance(one, tuple) for name in _stages(one)}


def _used(made: tuple[object, ...]) -> int:
    if made[0] in ("whole", "parts"):
        return int(str(made[2]))
    inner = [one for one in made[1:] if isinstance(one, tuple)]
    if made[0] == "split":
        return sum(_used(one) for one in inner)
    if made[0] == "handOver":
        left, right = inner
        return max(int(str(left[2])), int(str(left[3])) + _used(right))
    return max(_used(one) for one in inner)


def _stage(name: str, seconds: float, **more: object) -> Stage:
    counts = range(1, 9)
    return Stage(
        name,
        {count: seconds * 8 / count for count in counts},
        {count: (seconds * 8 / count / 8,) * 2 for count in counts},
        **more,  # type: ignore[arg-type]
    )


def test_a_split_takes_its_fill_and_then_the_slower_half() -> None:
    left = Stage("a", {1: 8.0}, {1: (3.0, 1.0)})
    right = Stage("b", {1: 16.0}, {1: (2.0, 2.0)})
    [best] = [one for one in search([left, right], 2, 8).best if one.made[0] == "split" and not one.whole]
    assert best.total == 3.0 + 2.0 + 7 * 2.0


def test_a_switch_is_paid_once_in_turn_and_for_each_part_when_alternating() -> None:
    left, right = _stage("a", 8.0), _stage("b", 8.0, switch=0.5, held=dict.fromkeys(range(1, 9), 60.0))
    left = Stage("a", left.whole, left.streamed, dict.fromkeys(range(1, 9), 60.0))
    found = search([left, right], 8, 8, memory=100.0).best
    by_way = {one.made[0]: one.total for one in reversed(found) if _used(one.made) == 8}
    assert by_way["turn"] == pytest.approx(16.5)
    assert by_way["alternate"] == pytest.approx(16.0 + 8 * 2 * 0.5)
    # Where both fit, nothing moves.
    assert search([left, right], 8, 8, memory=120.0).best[0].total == pytest.approx(16.0)


def test_what_does_not_fit_into_memory_is_not_found() -> None:
    stage = Stage("a", {1: 1.0, 2: 0.5}, held={1: 80.0, 2: 40.0})
    assert search([stage], 2, 1, memory=50.0).best[0].made == ("whole", "a", 2)
    assert search([stage], 1, 1, memory=50.0).best == ()


def test_a_slower_number_of_devices_is_found_where_the_fastest_does_not_fit() -> None:
    held = {2: 100.0, 4: 50.0}
    stage = Stage("a", {2: 10.0, 4: 11.0}, {2: (1.0, 1.0), 4: (2.0, 2.0)}, held)
    assert [one.made for one in search([stage], 4, 8, memory=60.0).best] == [
        ("whole", "a", 4),
        ("parts", "a", 4),
    ]
    assert search([stage], 4, 8).best[0].made == ("parts", "a", 2)


def _handing_over(held: dict[int, float] | None = None) -> list[Stage]:
    """Samplers of which twice as many are not twice as fast, and learners for whom it takes 6 s to take devices over."""
    whole = {count: 40 * (8 / count) ** 0.7 for count in range(1, 9)}
    parts = {count: (seconds / 8,) * 2 for count, seconds in whole.items()}
    sampler = Stage("a", whole, parts, held or dict.fromkeys(whole, 60.0), hands_over=True)
    return [sampler, _stage("b", 40.0, switch=6.0, held=dict.fromkeys(whole, 60.0))]


def test_hand_over_is_found_where_no_cut_is_as_good() -> None:
    """In turn samplers gain little from learners' devices; alone each waits for the other's first part and last."""
    left, right = _handing_over()
    found = search([left, right], 8, 8, memory=100.0).best
    assert found[0].made[0] == "handOver"
    without = search([replace(left, hands_over=False), right], 8, 8, memory=100.0).best
    assert {one.made for one in without} >= {one.made for one in found if one.made[0] != "handOver"}
    assert found[0].total < 0.95 * without[0].total


def test_hand_over_keeps_to_memory_before_it_and_after() -> None:
    """On all 8 devices, and on what is left of them, a sampler is only where it fits."""
    for held, all_devices in (({8: 120.0}, 7), ({1: 120.0, 2: 120.0, 3: 120.0}, 8)):
        stages = _handing_over(dict.fromkeys(range(1, 9), 60.0) | held)
        found = [one for one in search(stages, 8, 8, memory=100.0).best if one.made[0] == "handOver"]
        assert {one.made[1][2] for one in found} == {all_devices}  # type: ignore[index]
        assert not {one.made[1][3] for one in found} & set(held)  # type: ignore[index]
        assert all(one.held <= 100.0 for one in found)
    assert search(_handing_over(dict.fromkeys(range(1, 9), 120.0)), 8, 8, memory=100.0).best == ()


def test_of_more_than_a_few_devices_only_numbers_that_matter_are_tried() -> None:
    """What the search costs is counted, not timed: `bench/placement.py` times it."""
    rng = random.Random(3)
    stages = []
    for index in range(5):
        cost, scaling = rng.uniform(10, 300), rng.uniform(0.6, 1.0)
        counts = range(8, 1025, 8) if index == 0 else [2**power for power in range(11)]
        whole = {count: cost * (1024 / count) ** scaling for count in counts}
        parts = {count: (seconds / 64,) * 2 for count, seconds in whole.items()}
        stages.append(Stage(f"stage {index}", whole, parts, switch=3.0, hands_over=index == 0))
    counts = counts_of(stages, 1024)
    assert all(low < high for low, high in pairwise(counts))
    assert counts[-1] == 1024
    found = search(stages, 1024, 64)
    assert found.states <= 15 * len(counts)
    assert found.tried <= 45_000
