"""The memory of devices, from what a learner measures to what a plan says of tensors, and what of that a run is given."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import nn

from rl_api.planner.forecast import forecast, placed, wanted_of
from rl_api.planner.profile import RunProfile
from rl_api.run import RLTrainingRun, RunSpec
from rl_api.sizes.memory import GB
from rl_trainer.learner import measuring
from rl_trainer.learner.measuring import LearnerWork
from rl_trainer.observe.timeline import MEASURED, Span, SpanRecorder
from rl_trainer.profile.meters import EngineMeter
from rl_trainer.profile.run_profile import Measurements
from rl_trainer.run.replan import placement_status
from rl_trainer.trajectory import Group

TENSORS = 4 * GB  # of a learner's weights


def run(**placement: Any) -> RLTrainingRun:
    document = {
        "apiVersion": "rltrain.dev/v1alpha1",
        "kind": "RLTrainingRun",
        "metadata": {"name": "measured"},
        "spec": {
            "model": {"source": "tiny"},
            "task": {"environment": "reasoning-gym", "name": "chain_sum"},
            "algorithm": {"promptsPerStep": 4, "groupSize": 2},
            "sampler": {"replicas": 2, "maxNewTokens": 32, "maxSequences": 8},
            "learner": {"replicas": 2, "tokensPerMicroBatch": 1000},
            "placement": {"sharedSamplers": 2, **placement},
        },
    }
    return RLTrainingRun.model_validate(document)


def learner(spec: RunSpec, rank: int, device: str) -> SpanRecorder:
    """What a learner of a model of `TENSORS` bytes, with a pass of 1,000 tokens, has measured of one batch."""
    took = {"passes": 1.0, "reduce": 0.1, "optimizer": 0.1}
    one: Any = SimpleNamespace(
        spec=spec,
        device=torch.device(device),
        meter=SimpleNamespace(drain=lambda: took),
        model=nn.Linear(10_000, TENSORS // 40_000, bias=False, device="meta"),
        reference=None,
        critic=None,
        cuts=SimpleNamespace(largest_pass=1000),
    )
    spans = SpanRecorder(f"learner {rank}")
    with LearnerWork(one, spans).measured():
        pass
    return spans


def sampler(weights: int) -> Span:
    """What one has measured that decodes faster with fewer sequences."""
    meter = EngineMeter()
    for active in (1, 2, 4):
        meter.decoded(0.4 + 0.1 * active, active, 0)
    told = {"tool_seconds": 0.0, "weights": float(weights), "cache_bytes_per_token": 64.0}
    return Span("sampler 0", MEASURED, 0.0, 0.0, meter.drain() | told)


def measured(spec: RunSpec, device: str, weights: int = TENSORS) -> RunProfile:
    groups = [Group(number, [0.0] * 2, [8, 12], [20, 24], [False] * 2, 0) for number in range(4)]
    spans = [span for rank in range(2) for span in learner(spec, rank, device).drain()]
    measurements = Measurements(spec)
    measurements.step(groups, [sampler(weights), *spans])
    found = measurements.profile()
    assert found is not None
    return found


@pytest.fixture
def gpu(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Plays a GPU of so many bytes."""

    def of(size: int) -> None:
        monkeypatch.setattr(torch.cuda, "max_memory_allocated", lambda: 18 * GB)
        monkeypatch.setattr(torch.cuda, "memory_allocated", lambda: 16 * GB)
        properties = SimpleNamespace(total_memory=size)
        monkeypatch.setattr(torch.cuda, "get_device_properties", lambda _: properties)

    return of


# A learner keeps 16 GB there and its few tokens take 0.2 GB, a sampler's weights 4 GB, and each process 1 GiB.
@pytest.mark.parametrize(("size", "residency"), [(25 * GB, "keep"), (22 * GB, "swap")])
def test_what_becomes_of_tensors_is_planned_by_the_gpu_and_not_written_into_the_run(
    gpu: Any, size: int, residency: str
) -> None:
    gpu(size)
    whole = run()
    profile = measured(whole.spec, "cuda")
    assert profile.devices.memory == size
    assert profile.memory.learner.activations_per_token == 2 * GB / 1000
    found = forecast(profile, whole, lambda spec: None, as_many=True)
    assert found is not None
    assert (found.best.shared, found.best.residency) == (2, residency)
    # It counts of the run as it is too, whose spec does not say it.
    collocated = [found.best.predicted_step_seconds, found.now]
    assert collocated[0] == pytest.approx(collocated[1], rel=0.05)
    assert placed(whole, found.best).spec.placement.residency == "auto"
    wanted = wanted_of(found, whole.spec)
    assert wanted.residency == "auto"
    status = placement_status(whole.spec, wanted=wanted)
    assert status is not None
    assert status.to_document()["wanted"]["residency"] == "auto"


def test_a_gpu_that_moves_tensors_takes_longer_than_one_with_room_for_both(gpu: Any) -> None:
    seconds = []
    for size in (25 * GB, 22 * GB):
        gpu(size)
        found = forecast(measured(run().spec, "cuda"), run(), lambda spec: None, as_many=True)
        assert found is not None
        seconds.append(found.now)
    # 20 GB out and in again, at what a core copies at least.
    assert seconds[1] - seconds[0] > 20


def test_what_the_user_says_of_tensors_stays(gpu: Any) -> None:
    gpu(80 * GB)
    for residency in ("keep", "swap"):
        whole = run(residency=residency)
        found = forecast(measured(whole.spec, "cuda"), whole, lambda spec: None, as_many=True)
        assert found is not None
        assert found.best.residency == residency
        assert placed(whole, found.best).spec.placement.residency == residency
        assert wanted_of(found, whole.spec).residency == residency


def test_a_gpu_on_which_nothing_fits_has_no_forecast(gpu: Any) -> None:
    gpu(18 * GB)
    assert forecast(measured(run().spec, "cuda"), run(), lambda spec: None, as_many=True) is None


def test_processes_on_cpus_have_their_nodes_memory_in_common(monkeypatch: pytest.MonkeyPatch) -> None:
    def none() -> int:
        raise AssertionError("there is no GPU to be asked")

    monkeypatch.setattr(measuring, "device_memory", none)
    assert measured(run().spec, "cpu").devices.memory is None
