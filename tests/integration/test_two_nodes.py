"""What one node holds for others, how long, and what becomes of it with the node; see `two_nodes`."""

from __future__ import annotations

import math
import os
import sys
import time
from dataclasses import replace
from pathlib import Path

import numpy as np
import ray
from ray.util.placement_group import placement_group_table
from train_here import train_here
from two_nodes import FIRST, SECOND, in_a_process, two_nodes

from rl_api import RunSpec, load_run
from rl_trainer.buffer.groups import BufferConfig
from rl_trainer.buffer.handle import Buffer
from rl_trainer.buffer.payloads import fetch_payloads
from rl_trainer.learner.actor import LearnerActor
from rl_trainer.model.resolve import resolve_model
from rl_trainer.model.shared_folder import share_folder
from rl_trainer.observe.metrics import read_metrics
from rl_trainer.placement.places import place_run
from rl_trainer.rollout.fleet import Samplers
from rl_trainer.trajectory import Group, Trajectory

EXAMPLES = Path(__file__).parents[2] / "examples"
LARGE = 20_000  # tokens of a payload that travels by reference


class Sampler:
    """Hands in a group for every ticket."""

    def __init__(self, buffer: Buffer):
        self.buffer = buffer
        buffer.register(0)

    def sample(self, count: int) -> list[int]:
        """Group ids."""
        tickets = Buffer.result(self.buffer.acquire_ref(0, count, 10.0), "acquiring work").tickets
        for ticket in tickets:
            tokens = np.full(LARGE, ticket.group_id, np.int32)
            logprobs, versions = np.zeros(LARGE - 1, np.float32), np.zeros(LARGE - 1, np.int32)
            made = Trajectory(tokens, np.arange(LARGE) > 0, logprobs, versions)
            asked = self.buffer.put_ref(0, [Group.of(ticket.group_id, [made])])
            assert Buffer.result(asked, "handing in a group")[0].accepted
        return [ticket.group_id for ticket in tickets]


def lose_the_samplers_node() -> None:
    ray.cloudpickle.register_pickle_by_value(sys.modules[__name__])
    with two_nodes() as end_the_second:
        buffer = Buffer.create(BufferConfig(groups_per_step=4, max_staleness=1), **FIRST)
        buffer.publish(0, None)
        sampler = ray.remote(Sampler).options(**SECOND).remote(buffer)
        assert ray.get(sampler.sample.remote(4), timeout=120) == [0, 1, 2, 3]
        end_the_second()
        assert buffer.release(0) == []
        batch = buffer.take(10.0)
        for taken, payload in zip(
            batch.groups, fetch_payloads([one.payload for one in batch.groups]), strict=True
        ):
            assert isinstance(taken.payload, ray.ObjectRef)
            (made,) = taken.trajectories(payload)
            assert made.tokens.tolist() == [taken.group_id] * LARGE


def load_on_the_second(folder: Path, temporary: Path) -> None:
    os.environ |= {"TMPDIR": str(temporary), "RAY_TMPDIR": "/tmp"}  # Ray's sockets need short names
    spec = RunSpec.model_validate(
        {
            "model": {"source": str(folder)},
            "task": {"environment": "reasoning-gym", "name": "chain_sum"},
            "algorithm": {"promptsPerStep": 2},
        }
    )
    with two_nodes():
        buffer = Buffer.create(BufferConfig(groups_per_step=2), **FIRST)
        shared = replace(share_folder(folder), stamps=())  # as if the second had another disk
        files = {piece.hex() for _, pieces in shared.files for piece in pieces}
        assert files
        learner = ray.remote(LearnerActor).options(**SECOND).remote(0, 1, spec)
        ray.get(learner.start.remote(shared, None), timeout=120)
        assert list((temporary / "rltrain-models").iterdir()) == []
        samplers = Samplers(spec, shared, buffer, place_run(spec, print), None, None, print, print)
        del shared
        samplers.wait_ready()
        core, deadline = ray._private.worker.global_worker.core_worker, time.monotonic() + 60
        while files & {one.hex() for one in core.get_all_reference_counts()}:
            assert time.monotonic() < deadline, "the object store keeps the model"
            time.sleep(0.1)


def seat_the_actors() -> None:
    with two_nodes():
        for strategy, nodes in (("SPREAD", 2), ("PACK", 1)):
            spec = RunSpec.model_validate(
                {
                    "task": {"environment": "reasoning-gym", "name": "chain_sum"},
                    "sampler": {"replicas": 2, "resources": {"cpu": 0.4}},
                    "placement": {"strategy": strategy},
                }
            )
            whole, deadline = ray.cluster_resources()["CPU"], time.monotonic() + 60
            while ray.available_resources().get("CPU") != whole:  # what the run before had is given back
                assert time.monotonic() < deadline, "the reservation before is not given back"
                time.sleep(0.05)
            placement = place_run(spec, print)
            entry = placement_group_table(placement.reservation.group)
            seats = entry["bundles_to_node_id"]
            assert len(seats) == 4, "buffer, learner and two samplers"
            assert len(set(seats.values())) == nodes, strategy
            placement.release()


def train_with_samplers_on_the_second(out: Path) -> None:
    changes = (
        "stop={maxSteps: 3}",
        "warmStart=null",
        "task.evaluation=null",
        "algorithm.promptsPerStep=4",
        "sampler.replicas=1",
    )
    with two_nodes(first=("head", "learner"), second=("sampler",)):
        train_here(load_run(EXAMPLES / "quickstart.yaml", changes), out)


def test_bytes_between_nodes_are_those_that_samplers_of_another_node_read_and_send(tmp_path: Path):
    in_a_process(train_with_samplers_on_the_second, tmp_path / "run")
    records = read_metrics(tmp_path / "run" / "metrics.jsonl")
    loaded = [record for record in records if not math.isnan(record.received_bytes)]
    assert loaded
    # There is one sampler, which may load several versions in a step.
    assert all(record.weights_between_nodes_bytes % record.received_bytes == 0 for record in loaded)
    assert all(record.weights_between_nodes_bytes > 0 for record in loaded)
    sent = sum(record.answers_between_nodes_bytes for record in records)
    trained = sum(record.answers_bytes for record in records)
    assert 0 < trained <= sent, "groups come to the buffer's node, where the learner is, once"
    assert sent < 2 * trained, "and are not sent again"
    assert all(record.total_tokens_per_second > record.tokens_per_second > 0 for record in records)


def test_a_run_that_is_spread_takes_both_nodes_and_one_that_is_packed_takes_one():
    in_a_process(seat_the_actors)


def test_a_model_that_is_loaded_is_kept_neither_in_the_object_store_nor_on_the_disk(tmp_path: Path):
    folder = resolve_model("tiny", tmp_path / "models")
    (tmp_path / "tmp").mkdir()
    in_a_process(load_on_the_second, folder, tmp_path / "tmp")


def test_ready_groups_outlive_the_node_of_their_sampler():
    in_a_process(lose_the_samplers_node)
