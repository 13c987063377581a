"""Learner actors on real Ray: data parallelism over gloo, weights through the object store, deaths as sentences."""

from __future__ import annotations

import itertools
import os
import signal
import socket
from dataclasses import replace
from functools import partial
from hashlib import sha256
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import ray
from small_learners import groups, launch, received, spec, weights_of
from training_runs import until
from victims import is_alive

from rl_api.errors import ActorDied, DeadlineExceeded, PlacementError
from rl_trainer.algorithms.value_targets import value_targets
from rl_trainer.buffer.groups import BufferConfig
from rl_trainer.buffer.handle import Buffer
from rl_trainer.flow.calls import answer
from rl_trainer.flow.pulse import Pulse, Watch
from rl_trainer.flow.ray_store import RayStore
from rl_trainer.flow.turns import Turn
from rl_trainer.learner.actor import LearnerActor
from rl_trainer.learner.group import Learners
from rl_trainer.model.export import describe_weights
from rl_trainer.model.loader import load_model
from rl_trainer.model.resolve import resolve_model, weight_files
from rl_trainer.observe.timeline import SpanRecorder
from rl_trainer.placement.groups import Bundle, Reservation, wait_for_all
from rl_trainer.weights.transports.collective import CollectiveReceiver
from rl_trainer.weights.transports.group import WeightGroup
from rl_trainer.weights.transports.invitation import Invitation
from rl_trainer.weights.transports.object_store import StoreReceiver
from rl_trainer.weights.transports.publication import Publication

pytestmark = pytest.mark.usefixtures("local_ray")

# The other rank and the buffer, which live, get no processor for seconds now and then: they must not be silent as well.
LIMIT = 8.0


def trained(replicas: int, cache: Path) -> tuple[dict[str, np.ndarray], list[float]]:
    learners, reservation = launch(replicas, cache)
    try:
        learners.start_reinforcement()
        losses = []
        for step in range(3):
            advantages = np.random.default_rng(step).normal(size=12).astype(np.float32)
            result, published, spans = learners.update(
                groups(step), advantages, step, step + 1 if step else None
            )
            assert (published and published.version) == (step + 1 if step else None)
            losses.append(result.metrics["loss"])
            assert {span.actor for span in spans} >= {f"learner {rank}" for rank in range(replicas)}
        assert learners.state().optimizer_steps == 3
        assert received(learners, "optimizer")
        return weights_of(learners), losses
    finally:
        reservation.release()
        for actor in learners.actors:
            ray.kill(actor)


def test_two_learners_give_the_parameters_of_one(tmp_path: Path):
    one, losses_of_one = trained(1, tmp_path)
    two, losses_of_two = trained(2, tmp_path)
    assert one.keys() == two.keys()
    for name, value in one.items():
        np.testing.assert_allclose(two[name], value, rtol=0, atol=1e-5, err_msg=name)
    assert losses_of_two == pytest.approx(losses_of_one, rel=1e-4)


def test_two_learners_that_divide_it_or_its_sequences_give_the_critic_of_one(tmp_path: Path):
    found = []
    options = {"learningRate": 1e-3, "warmupSteps": 1}
    for replicas, parallelism, context in ((1, "ddp", 1), (2, "fsdp2", 1), (2, "ddp", 2)):
        learners, reservation = launch(
            replicas, tmp_path, parallelism, context=context, name="ppo", miniBatches=2, critic=options
        )
        learners.start_reinforcement()
        initial = weights_of(learners)
        for step in range(3):
            batch = groups(step)
            values = learners.token_estimates(batch)[0].values
            assert values is not None
            rewards = [np.eye(len(part))[-1] * (index % 3) for index, part in enumerate(values)]
            targets = value_targets(rewards, values, gamma=1.0, lam=0.9)
            result, _, _ = learners.update(batch, targets, step)
            assert {"value_loss", "explained_variance", "value_mean"} <= result.metrics.keys()
            if step == 0:  # the critic's warm-up
                assert result.optimizer_steps == 0
                assert all(
                    np.array_equal(value, initial[name]) for name, value in weights_of(learners).items()
                )
        critic = received(learners, "critic")
        assert critic["steps"] == 6
        found.append((critic, weights_of(learners), np.concatenate(values)))
        reservation.release()
        for actor in learners.actors:
            ray.kill(actor)
    assert np.abs(found[0][2]).max() > 1e-3
    for other in found[1:]:
        np.testing.assert_allclose(other[2], found[0][2], rtol=0, atol=1e-5)
        for index in (0, 1):
            for name, value in found[0][index].items():
                np.testing.assert_allclose(other[index][name], value, rtol=0, atol=1e-5, err_msg=name)


def test_kl_of_every_answer_comes_back_in_order_whatever_the_ranks(tmp_path: Path):
    found = []
    for replicas in (1, 2):
        learners, reservation = launch(replicas, tmp_path, kl={"coefficient": 0.05, "placement": "reward"})
        learners.start_reinforcement()
        learners.update(groups(0), np.ones(12), 0)
        estimates, spans = learners.token_estimates(groups(1))
        values = estimates.kl
        assert values is not None
        assert [len(part) for part in values] == [n for group in groups(1) for n in group.lengths]
        assert {span.actor for span in spans} >= {f"learner {rank}" for rank in range(replicas)}
        found.append(np.concatenate(values))
        reservation.release()
        for actor in learners.actors:
            ray.kill(actor)
    assert np.abs(found[0]).max() > 1e-4
    np.testing.assert_allclose(found[1], found[0], atol=1e-4)


class CountedBytes(bytes):
    """A payload that counts how often this process pickles it."""

    pickled = 0

    def __reduce__(self) -> tuple[Any, ...]:
        CountedBytes.pickled += 1
        return bytes, (bytes(self),)


def test_a_group_is_sent_to_the_rank_that_needs_it_alone(tmp_path: Path):
    learners, reservation = launch(2, tmp_path)
    learners.start_reinforcement()
    batch = [replace(one, payload=CountedBytes(one.payload)) for one in (groups(0)[0], groups(0)[0])]
    learners.update(batch, np.ones(8, np.float32), 0)
    assert CountedBytes.pickled == len(batch)
    reservation.release()
    for actor in learners.actors:
        ray.kill(actor)


def test_the_address_at_which_learners_meet_is_nobody_elses(tmp_path: Path):
    first, second = LearnerActor(0, 2, spec(2)), LearnerActor(0, 2, spec(2))
    addresses = [one.rendezvous() for one in (first, second)]
    assert len(set(addresses)) == 2
    for _, port in addresses:
        with socket.socket() as taken, pytest.raises(OSError, match="in use"):
            taken.bind(("", port))


def test_published_weights_are_the_learners_and_carry_their_version(tmp_path: Path):
    learners, reservation = launch(1, tmp_path)
    publication, _ = learners.publish(7)
    assert (publication.version, publication.way) == (7, "objectStore")
    assert {block.version for block in ray.get(publication.blocks)} == {7}
    weights, published = weights_of(learners), StoreReceiver(RayStore(), "here").receive(publication, 60)
    assert published.keys() == weights.keys()
    for name, value in published.items():
        assert np.array_equal(value.numpy(), weights[name]), name
    # An export of several files is a model folder as one of a single file is.
    folder = tmp_path / "several"
    folder.mkdir()
    files = learners.write(folder, {"weights": "model"}, limit=20_000).wait()
    describe_weights(resolve_model("tiny", tmp_path, learners.spec.model.tiny, 0, None), folder, files)
    assert len(weight_files(folder)) == len(files.digests) > 1
    assert max(size for size, _ in files.digests.values()) < 22_000
    opened = load_model(folder).hf_state_dict()
    assert opened.keys() == weights.keys()
    assert all(np.array_equal(value.numpy(), weights[name]) for name, value in opened.items())
    reservation.release()


def taker() -> Any:
    """An actor that receives broadcasts; Ray sends its class along, as it stands in a function."""

    class Taker:
        """A sampler's side of a broadcast, in a process of its own."""

        def __init__(self) -> None:
            self.receiver = CollectiveReceiver(RayStore(), "taker")

        def join(self, invitation: Invitation, member: int) -> str | None:
            return self.receiver.join(invitation, member)

        def digests(self, publication: Publication) -> dict[str, str]:
            found = self.receiver.receive(publication, 60)
            return {name: sha256(value.numpy().tobytes()).hexdigest() for name, value in found.items()}

        def die_half_way(self) -> None:
            """Within the next version: header and description are here, a block is not."""
            real, calls = WeightGroup.broadcast, []

            def broadcast(group: WeightGroup, data: Any, deadline: float) -> None:
                calls.append(data)
                if len(calls) == 3:
                    os.kill(os.getpid(), signal.SIGKILL)
                real(group, data, deadline)

            WeightGroup.broadcast = broadcast  # type: ignore[method-assign]

    return ray.remote(Taker).options(num_cpus=0, max_concurrency=2).remote()


def test_samplers_get_the_same_bits_by_every_way_and_one_that_is_killed_half_way_blocks_nobody(
    tmp_path: Path,
):
    learners, reservation = launch(2, tmp_path)  # that have a group of their own
    learners.start_reinforcement()
    address = learners.meeting_point()
    takers = [taker() for _ in range(3)]

    def spread(version: int, group: str, members: list[Any]) -> tuple[Publication, list[Any]]:
        published, _ = learners.publish(version)
        invitation = Invitation(version, group, address, len(members) + 1, 200.0)
        learners.broadcast(published, invitation)
        joins = [taker.join.remote(invitation, 1 + index) for index, taker in enumerate(members)]
        # On the way already: what learners do meanwhile changes nothing of it.
        learners.update(groups(version), np.ones(12, np.float32), version)
        return replace(published, way="collective"), joins

    def digests(publication: Publication, members: list[Any]) -> list[dict[str, str]]:
        return ray.get([taker.digests.remote(publication) for taker in members], timeout=240)

    published, joins = spread(1, "first", takers)
    assert ray.get(joins, timeout=240) == [None] * 3
    by_store = StoreReceiver(RayStore(), "here").receive(published, 60)
    expected = {name: sha256(value.numpy().tobytes()).hexdigest() for name, value in by_store.items()}
    # Without blocks in the store there is no other way.
    assert digests(replace(published, blocks=[]), takers) == [expected] * 3

    ray.get(takers[2].die_half_way.remote())
    before = expected
    published, joins = spread(2, "first", takers)
    with pytest.raises(ray.exceptions.RayActorError):
        ray.get(joins[2], timeout=240)
    ray.get(joins[:2], timeout=150)  # sooner than the deadline
    left = digests(published, takers[:2])
    assert left[0] == left[1] != before

    published, joins = spread(3, "second", takers[:2])
    assert ray.get(joins, timeout=240) == [None, None]
    assert len(digests(replace(published, blocks=[]), takers[:2])) == 2
    reservation.release()
    for actor in (*learners.actors, *takers[:2]):
        ray.kill(actor)


def test_what_a_rank_cannot_write_itself_comes_through_the_driver_and_a_death_names_its_rank(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    def shorten(actor: Any) -> int:
        """In a learner's process, of which the second does not see the driver's folder."""
        import rl_trainer.learner.actor as module

        module.Save = partial(module.Save, piece=20_000)
        if actor.inner.rank:
            module._reached = lambda folder: False
        return os.getpid()

    learners, reservation = launch(2, tmp_path)
    learners.start_reinforcement()
    learners.update(groups(0), np.ones(12, np.float32), 0)
    parts = ("weights", "optimizer")
    here = {part: received(learners, part) for part in parts}
    assert learners.reach(tmp_path)
    pids = [ray.get(actor.__ray_call__.remote(shorten)) for actor in learners.actors]
    assert not learners.reach(tmp_path)
    for part in parts:
        sent = received(learners, part)
        assert sent.keys() == here[part].keys()
        assert all(np.array_equal(sent[name], value) for name, value in here[part].items())
    rounds, go_on = itertools.count(), Learners._write_round

    def with_a_death(self: Learners, *arguments: Any) -> bool:
        if next(rounds) == 2:
            os.kill(pids[1], signal.SIGKILL)
        return go_on(self, *arguments)

    monkeypatch.setattr(Learners, "_write_round", with_a_death)
    with pytest.raises(ActorDied, match=r"^learner 1 died while writing optimizer: .*--resume"):
        received(learners, "optimizer")
    reservation.release()
    for actor in learners.actors:
        ray.kill(actor)


def test_a_killed_learner_is_a_sentence_that_says_how_to_go_on(tmp_path: Path):
    """What they hold of devices that samplers use too is free then."""
    buffer = Buffer.create(BufferConfig(1, max_staleness=0, samplers=1))
    learners, reservation = launch(2, tmp_path)
    learners.turn = Turn(
        buffer.actor,
        ["learner 0", "learner 1"],
        lambda call, actor, phase, timeout, meanwhile: answer(call, actor, phase, timeout),
        SpanRecorder("driver"),
    )
    learners.start_reinforcement()
    os.kill(ray.get(learners.actors[1].__ray_call__.remote(lambda self: os.getpid())), signal.SIGKILL)
    with pytest.raises(ActorDied, match=r"learner \d died while training: .*; add --resume"):
        learners.update(groups(0), np.ones(12, np.float32), 0)
    assert ray.get(buffer.actor.claim.remote("sampler 0", ["learner 0"], 60.0)) == 3
    reservation.release()
    ray.kill(buffer.actor)


def test_a_stopped_learner_is_named_and_not_the_one_that_waits_for_it(tmp_path: Path):
    buffer = Buffer.create(BufferConfig(1, max_staleness=0, samplers=1))
    learners, reservation = launch(2, tmp_path, watch=Watch(Pulse(buffer.actor, LIMIT)))
    learners.start_reinforcement()
    stopped = ray.get(learners.actors[1].__ray_call__.remote(lambda self: os.getpid()))
    until(lambda: sorted(ray.get(buffer.actor.silent.remote(-1.0))) == ["learner 0", "learner 1"])
    os.kill(stopped, signal.SIGSTOP)
    try:
        with pytest.raises(
            DeadlineExceeded, match=rf"^learner 1: no sign of life for {LIMIT:g} s .* while training; "
        ):
            learners.update(groups(0), np.ones(12, np.float32), 0)
    finally:
        for actor in (*learners.actors, buffer.actor):
            ray.kill(actor)
        reservation.release()
    # A process that is stopped cannot end itself.
    until(lambda: not is_alive(stopped))


def test_a_cluster_that_is_too_small_is_told_after_the_deadline():
    bundles = [Bundle("learner 0", 1), *(Bundle(f"sampler {rank}", 64) for rank in range(2))]
    with pytest.raises(PlacementError) as caught:
        wait_for_all([Reservation(bundles)], 1.0)
    sentence = str(caught.value)
    assert "129 CPU in all and 64 on one node (cluster: 4," in sentence
    assert "placement.timeout" in sentence
