"""What comes from another node is counted where it is read, and what is on the reader's own node is not."""

from __future__ import annotations

import asyncio
import json
from types import SimpleNamespace

import numpy as np
import pytest

from rl_trainer.buffer import payloads
from rl_trainer.buffer.actor import Batch, BufferActor
from rl_trainer.buffer.groups import BufferConfig
from rl_trainer.learner.plan import Member
from rl_trainer.learner.share import deal
from rl_trainer.observe.between_nodes import BetweenNodes
from rl_trainer.observe.timeline import MEASURED, Span
from rl_trainer.rollout.measuring import WeightsReading
from rl_trainer.run.actors import Actors
from rl_trainer.trajectory import Group, Trajectory, packed_bytes
from rl_trainer.weights.transports.collective import CollectiveReceiver
from rl_trainer.weights.transports.publication import Publication

HERE, THERE = "here", "there"


def group(number: int, node: str) -> Group:
    one = Trajectory(
        np.zeros(8, np.int32), np.arange(8) > 2, np.zeros(5, np.float32), np.zeros(5, np.int32), reward=1.0
    )
    return Group.of(number, [one, one], node=node)


def load(actor: str, version: int, node: str, size: float) -> Span:
    return Span(actor, "load weights", 0.0, 1.0, {"version": version, "node": node, "elsewhere": size})


@pytest.mark.parametrize(("source", "counted"), [(HERE, 0), (THERE, 900), ("", 0)])
def test_a_sampler_tells_what_it_has_read_from_another_node(source: str, counted: int) -> None:
    store = SimpleNamespace(taken_bytes=700)
    receiver = CollectiveReceiver(SimpleNamespace(), "a sampler")  # type: ignore[arg-type]
    receiver.broadcast_bytes = 200
    reading = WeightsReading(store, receiver, HERE)
    published = Publication(3, "objectStore", [], node=source)
    assert reading.read(published) == {"bytes": 700, "node": HERE, "elsewhere": counted}
    assert reading.read(published) == {"bytes": 0, "node": HERE, "elsewhere": 0}


def test_a_version_goes_to_a_node_once_whoever_reads_it_there_and_when() -> None:
    counts = BetweenNodes()
    step = [load("sampler 0", 1, THERE, 800), load("sampler 1", 1, THERE, 800), load("sampler 2", 1, HERE, 0)]
    assert counts.step(step)["weights_between_nodes_bytes"] == 800
    later = [load("sampler 3", 1, THERE, 900), load("sampler 4", 1, "third", 800)]
    assert counts.step(later)["weights_between_nodes_bytes"] == 900, "100 more, and another node"
    assert counts.step([load("sampler 0", 2, THERE, 800)])["weights_between_nodes_bytes"] == 800
    assert counts.step([]) == {"weights_between_nodes_bytes": 0, "answers_between_nodes_bytes": 0}


def test_answers_go_to_a_node_once_however_many_learners_read_them_and_how_often() -> None:
    spans = [
        Span("learner 0", MEASURED, 0.0, 0.0, {"node": THERE, "elsewhere": {7: 50, 8: 60}}),
        Span("learner 0", MEASURED, 0.0, 0.0, {"node": THERE, "elsewhere": {7: 50}}),
        Span("learner 1", MEASURED, 0.0, 0.0, {"node": THERE, "elsewhere": {8: 60}}),
        Span("learner 2", MEASURED, 0.0, 0.0, {"node": "third", "elsewhere": {8: 60}}),
        Span("learner 3", MEASURED, 0.0, 0.0, {"node": HERE, "elsewhere": {}}),
        Span("driver", MEASURED, 0.0, 0.0, {"elsewhere_bytes": 1000}),
        Span("driver", MEASURED, 0.0, 0.0, {"cpu_seconds": 1.0}),
    ]
    assert BetweenNodes().step(spans)["answers_between_nodes_bytes"] == 1170


def test_a_learner_tells_which_groups_came_from_another_node() -> None:
    groups = [group(10, HERE), group(11, THERE), group(12, "")]
    data = [one.payload for one in groups]
    chosen = [[[Member(one, 0, 1.0) for one in (2, 1)]], [[Member(0, 0, 1.0)]]]
    shares = deal(data, chosen, origins=[(one.group_id, one.node) for one in groups])
    size = packed_bytes(groups[0])
    found = [[share.elsewhere(node, share.payloads) for share in shares] for node in (HERE, THERE)]
    assert found == [[{11: size}, {}], [{}, {10: size}]]
    unknown = deal(data, chosen)
    assert [share.elsewhere(HERE, share.payloads) for share in unknown] == [{}, {}]


def test_a_buffer_tells_what_samplers_of_other_nodes_have_given_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(payloads, "own_node", lambda: HERE)

    async def play() -> list[float]:
        actor, found = BufferActor(BufferConfig(2, max_staleness=1, samplers=1)), []
        await actor.register(0)
        await actor.publish(0, None)
        for nodes in ((THERE, HERE), (HERE, "")):
            tickets = (await actor.acquire(0, 2, 0.0)).tickets
            await actor.put(0, [group(one.group_id, at) for one, at in zip(tickets, nodes, strict=True)])
            batch = await actor.take(10.0)
            assert {one.node for one in batch.groups} == ({HERE} if "" not in nodes else {HERE, ""})
            metrics = await actor.finish_step(batch.step, None, None)
            found.append(metrics["elsewhere_bytes"])
        return found

    assert asyncio.run(play()) == [packed_bytes(group(0, HERE)), 0]


def test_what_comes_to_the_driver_in_a_call_is_sent_from_its_node(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(payloads, "own_node", lambda: HERE)
    told: list[float] = []
    driver = SimpleNamespace(
        spans=SimpleNamespace(measured=lambda elsewhere_bytes: told.append(elsewhere_bytes)),
        _arrivals=payloads.Arrivals(),
    )
    stored = Group.load(group(2, "").dump() | {"node": THERE}, payload=object())
    part = Batch(0, [group(0, THERE), group(1, HERE), stored, group(3, "")])
    placed = Actors._placed(driver, part)  # type: ignore[arg-type]
    assert [one.node for one in placed.groups] == [HERE, HERE, THERE, ""]
    assert told == [packed_bytes(group(0, HERE))]


def test_a_checkpoint_has_no_nodes_and_is_read_by_versions_that_know_none() -> None:
    assert "node" not in json.loads(json.dumps(group(0, THERE).dump()))
