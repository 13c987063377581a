"""A service whose update waits for room: its policies change meanwhile, and nothing else of it does."""

from __future__ import annotations

from copy import deepcopy
from dataclasses import replace
from typing import Any

import pytest
from operator_worlds import GPU_POOLS, make_profile
from service_worlds import FOLLOWED, ServiceStory, checkpoint, make_service_plan

from rl_api.documents import dump_yaml
from rl_operator.decide.waiting import meanwhile, policy_change
from rl_operator.model.needs import Needs, Others
from rl_operator.model.seen import Live
from rl_operator.model.service import Control, Evaluation, Gateway, Replica, VersionFigures
from rl_operator.render.service import ray_service
from rl_operator.render.service_config import ServeConfig

STEPS = {"gatewayClass": "haproxy", "stepPercent": 20, "interval": "30s"}
SECOND = "chat-fghij"
ANNOTATION = "rltrain.dev/policy"
MORE = {"replicas": {"min": 4}}
BAD = VersionFigures(requests=100, errors=50)


def story(**promotion: Any) -> ServiceStory:
    """A service of two copies that has all accelerators that are left, and serves step 20."""
    whole = {"rollback": {"window": "60s", "minRequests": 10}} | promotion
    spec = {"pools": ["h100"], "replicas": {"min": 2}, "promotion": whole}
    made = ServiceStory(spec, gateway=Gateway("10.0.0.7"))
    limits = {"perNamespace": {"maxAccelerators": 4}}
    made.profiles = [
        make_profile("shared", default=True, pools=[GPU_POOLS[0], {"name": "cpu"}], limits=limits)
    ]
    made.served(20)
    assert made.world.ray is not None
    made.world = replace(
        made.world, others=Others(Needs(accelerators=2)), ray=replace(made.world.ray, steps=True)
    )
    return made


def waits(one: ServiceStory, **change: Any) -> None:
    """It is to become something for which there is no room, and goes on as it was."""
    one.spec = one.spec | MORE | change
    one.look()
    assert one.condition("ClusterReady")[:2] == ("True", "UpdateWaits")


def comes(one: ServiceStory, step: int) -> None:
    """A checkpoint is there that passes the gate."""
    one.checkpoints.insert(0, checkpoint(step))
    one.evaluations[checkpoint(step).digest] = Evaluation("passed", "it is good enough")
    one.looks(4)


def live(one: ServiceStory) -> dict[str, Any]:
    return deepcopy(dict(one.world.live["RayService", "chat"].spec))


def without_policy(spec: dict[str, Any]) -> dict[str, Any]:
    """A RayService but for the policy that it is told to serve."""
    config = ServeConfig.read(spec["serveConfigV2"])
    assert config is not None
    return spec | {"serveConfigV2": config.serving(None)}


def test_better_ones_are_promoted_and_pods_stay_as_they_are() -> None:
    one = story()
    waits(one)
    before = live(one)
    for step in (30, 40):
        comes(one, step)
        one.looks(40)
        assert one.told == checkpoint(step).version
    assert [each.step for each in one.status.promotions] == [20, 30, 40]
    assert without_policy(live(one)) == without_policy(before)
    assert one.condition("ClusterReady")[1] == "UpdateWaits"
    assert not any(each.apply or each.create or each.scale for each in one.decisions[-80:])
    decision = one.look(others=Others())
    assert [each["kind"] for each in decision.apply] == ["RayService"]
    assert (one.told, decision.change) == (checkpoint(40).version, ())
    assert without_policy(live(one)) != without_policy(before)


def test_what_is_told_already_is_not_told_again() -> None:
    one = story()
    waits(one)
    comes(one, 30)
    assert [bool(each.change) for each in one.decisions[-4:]].count(True) == 1
    one.spec = one.spec | {"replicas": {"min": 2}}
    one.look()
    assert one.condition("ClusterReady")[1] == "Ready"
    assert one.told == checkpoint(30).version, "the change was taken back, the policy was not"


@pytest.mark.parametrize("before", [True, False], ids=["promoted before", "promoted while it waits"])
def test_one_that_is_worse_goes_back(before: bool) -> None:
    one = story()
    if before:
        comes(one, 30)
    waits(one)
    if not before:
        comes(one, 30)
    assert one.told == checkpoint(30).version
    assert one.status.candidate is not None
    assert one.status.candidate.state == "Watching"
    one.figures[checkpoint(30).version] = BAD
    one.looks(3)
    assert one.told == checkpoint(20).version
    assert one.status.promotions[-1].result == "rolledBack"
    assert one.status.refused == [checkpoint(30).digest]
    assert one.condition("ClusterReady")[1] == "UpdateWaits"


def test_a_change_by_somebody_else_in_between_is_noticed() -> None:
    one = story()
    waits(one)
    comes(one, 30)
    (change,) = (each.change for each in one.decisions[-4:] if each.change)
    tests = {each["path"]: each["value"] for each in change if each["op"] == "test"}
    assert tests.keys() == {"/metadata/uid", "/spec/serveConfigV2"}
    assert tests["/metadata/uid"] == "uid-of-chat"
    config = ServeConfig.read(tests["/spec/serveConfigV2"])
    assert config is not None
    assert config.policy is not None
    assert config.policy["version"] == checkpoint(20).version


def test_a_second_cluster_has_pods_as_those_of_the_first() -> None:
    one = story(strategy="newCluster")
    waits(one)
    before = live(one)
    comes(one, 30)
    now = live(one)
    head = now["rayClusterConfig"]["headGroupSpec"]["template"]["metadata"]
    assert head["annotations"] == {ANNOTATION: checkpoint(30).version}
    copies = [spec["rayClusterConfig"]["workerGroupSpecs"] for spec in (before, now)]
    assert copies[0] == copies[1]
    one.figures[checkpoint(30).version] = BAD
    one.looks(3)
    # The first policy is that of the cluster that came up without one.
    assert live(one) == before


def test_the_traffic_goes_back_at_once_even_where_it_is_halted() -> None:
    one = story(strategy="incremental", incremental=STEPS)
    waits(one)
    one.obeys = False  # the first cluster goes on with what it has
    comes(one, 30)
    options = live(one)["upgradeStrategy"]["clusterUpgradeOptions"]
    assert (options["stepSizePercent"], options["intervalSeconds"]) == (20, 30)
    one.spec["promotion"]["incremental"] = STEPS | {"halted": True}
    one.look()
    assert live(one)["upgradeStrategy"]["clusterUpgradeOptions"]["stepSizePercent"] == 0
    assert one.world.ray is not None
    version = checkpoint(30).version
    second = Control(one.now, SECOND, replicas=(Replica("one", version),), versions={version: BAD})
    one.look(ray=replace(one.world.ray, pending=SECOND, share=40), coming=second)
    assert one.told == checkpoint(20).version
    options = live(one)["upgradeStrategy"]["clusterUpgradeOptions"]
    assert (options["stepSizePercent"], options["intervalSeconds"]) == (100, 1)
    one.look(ray=replace(one.world.ray, pending="", share=None), coming=None)
    assert one.status.promotions[-1].result == "rolledBack"


@pytest.mark.parametrize(
    "change",
    [
        {"from": {"run": "others"}},
        {"promotion": {"gate": {"probe": {"configMap": "probe"}}, "rollback": {"minRequests": 10}}},
    ],
    ids=["source", "probe"],
)
def test_who_would_be_measured_by_something_else_is_not_tried_but_goes_back(change: dict[str, Any]) -> None:
    one = story()
    comes(one, 30)
    waits(one, **change)
    assert one.world.followed is not None
    if "from" in change:
        one.world = replace(one.world, followed=replace_run(one.world.followed))
    one.figures[checkpoint(30).version] = BAD
    comes(one, 40)
    assert one.told == checkpoint(20).version
    assert one.status.promotions[-1].result == "rolledBack"
    one.looks(3)
    assert one.status.candidate is None
    assert one.condition("ClusterReady")[2].endswith(
        "; meanwhile no new candidate is tried, as the change is also one of where policies come from, or of the gate's "
        "probe"
    )


def replace_run(followed: Any) -> Any:
    return followed.model_copy(update={"name": "others", "uid": "other-uid", "folder": "others-other-uid"})


def test_one_that_was_being_measured_is_measured_anew() -> None:
    one = story()
    one.checkpoints.insert(0, checkpoint(30))
    one.look()
    assert one.status.candidate is not None
    waits(one, promotion={"gate": {"probe": {"configMap": "probe"}, "latency": {}}})
    assert one.status.candidate is None
    assert one.status.refused == []
    one.look(3600.0, others=Others())
    one.look()
    assert one.status.candidate is not None
    assert one.last.wish is not None
    assert "probe" in one.last.wish.body["gate"]


def test_a_change_to_steps_waits_with_everything() -> None:
    one = story()
    comes(one, 30)
    waits(one, promotion=one.spec["promotion"] | {"strategy": "incremental", "incremental": STEPS})
    one.figures[checkpoint(30).version] = BAD
    one.looks(3)
    assert one.told == checkpoint(30).version
    assert (
        "meanwhile no policy is promoted or taken back, as the change is also one of promotion.strategy"
        in (one.condition("ClusterReady")[2])
    )
    one.spec["promotion"] = {"rollback": {"minRequests": 10}}
    one.looks(2)
    assert one.told == checkpoint(20).version


@pytest.mark.parametrize(
    "config",
    [
        None,
        7,
        "",
        "{",
        "[]",
        "applications: []",
        "applications: 7",
        "a: &a [x]\nb: *a",
        dump_yaml({"applications": [{"name": "rltrain", "args": {"source": {}}, "deployments": []}]}),
        dump_yaml({"applications": [{"name": "rltrain", "args": [7], "deployments": [{"name": "policy"}]}]}),
        dump_yaml({"applications": [{"name": []}]}),
        "[" * 3000,
    ],
)
def test_what_somebody_has_made_of_it_is_not_touched(config: object) -> None:
    wanted = ray_service(make_service_plan(), FOLLOWED, checkpoint(30))
    live = Live("uid", "", wanted["spec"] | {"serveConfigV2": config})
    found = meanwhile(live, wanted)
    assert (found.changes, found.tries) == (False, False)
    assert found.why.endswith("as somebody has changed serveConfigV2 of its RayService")
    assert policy_change(live, wanted, in_place=True) == ()


def test_what_the_api_server_adds_is_no_change() -> None:
    wanted = ray_service(make_service_plan(), FOLLOWED, checkpoint(30))
    spec = wanted["spec"] | {"upgradeStrategy": wanted["spec"]["upgradeStrategy"] | {"default": 1}}
    assert policy_change(Live("uid", "", spec), wanted, in_place=False) == ()
