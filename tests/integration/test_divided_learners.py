"""Learners that divide a model between them (FSDP2 over gloo): the numbers of one process, whatever is divided how."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
import torch.distributed as dist
from divided_learners import Case, Outcome, Ranks, pieces, run
from library_models import made_once
from small_families import save_small
from transformers import AutoModelForCausalLM

from rl_api.errors import DeadlineExceeded, ModelError
from rl_trainer.algorithms.head_ways import TORCH, head_way
from rl_trainer.algorithms.token_log_probs import OURS
from rl_trainer.checkpoint.shards import shards_of
from rl_trainer.flow.worker import Worker
from rl_trainer.learner import head_choice
from rl_trainer.learner.head_choice import HeadChooser, HeadShape, choose
from rl_trainer.learner.policy import Policy
from rl_trainer.learner.rank import Learner
from rl_trainer.model.folder import read_shapes
from rl_trainer.model.weight_files import weight_files

FSDP = {"parallelism": "fsdp2"}


@pytest.fixture(scope="module")
def ranks(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Ranks]:
    group = Ranks(4, tmp_path_factory.mktemp("rendezvous"))
    yield group
    group.close()


@pytest.fixture(scope="module")
def family(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    return made_once(tmp_path_factory, save_small)


def close(found: Outcome, expected: Outcome) -> None:
    np.testing.assert_allclose(found.losses, expected.losses, rtol=0, atol=1e-5)
    np.testing.assert_allclose(found.norms, expected.norms, rtol=1e-5, atol=1e-5)
    assert found.weights.keys() == expected.weights.keys()
    for name, value in expected.weights.items():
        np.testing.assert_allclose(found.weights[name], value, rtol=0, atol=1e-5, err_msg=name)


KL = {"kl": {"coefficient": 0.05}}
LORA = {"lora": {"rank": 3, "alpha": 6, "targetModules": ["q_proj", "v_proj", "o_proj"]}}
PPO = {"name": "ppo", "miniBatches": 2, "critic": {"learningRate": 3e-3}}
IN_REWARD = {"kl": {"coefficient": 0.05, "placement": "reward"}}
AGAIN = {"activationCheckpointing": True}
CASES = [
    # family, ranks, ranks that share a copy, learner, algorithm, ranks with samples
    ("llama", 4, 2, LORA, KL, 3),
    ("llama", 3, 1, {}, {}, None),
    ("llama", 3, None, AGAIN, {**PPO, **IN_REWARD}, 1),
    ("qwen3", 4, None, {"optimizerOffload": True}, KL, None),
    ("qwen3", 2, None, {**LORA, **AGAIN}, {**PPO, **IN_REWARD}, None),
    ("gemma", 2, None, {}, KL, 1),
    ("gemma", 2, None, AGAIN, PPO, None),
    ("phi3", 4, 2, AGAIN, KL, None),
    ("gpt2", 2, None, {**AGAIN, "lora": {"rank": 2, "targetModules": ["c_attn", "c_proj"]}}, KL, 1),
    ("gpt2", 2, 1, {}, PPO, None),
    ("qwen3-moe", 2, None, {}, KL, 1),
    ("qwen3-moe", 4, 2, {**LORA, **AGAIN}, IN_REWARD, None),
]


@pytest.mark.parametrize(
    ("name", "count", "learner", "algorithm"),
    [
        ("llama", 2, FSDP, {**PPO, **IN_REWARD}),
        ("llama", 2, {**FSDP, **LORA}, KL),
        ("qwen3-moe", 2, FSDP, KL),
        ("llama", 2, {}, PPO),
    ],
)
def test_ranks_whose_tensors_were_away_between_steps_have_the_same_bits(
    ranks, family, name, count, learner, algorithm
):
    case = Case(family(name), learner, algorithm, steps=3)
    for found, expected in zip(ranks(replace(case, away=True), count), ranks(case, count), strict=True):
        assert (found.losses, found.norms) == (expected.losses, expected.norms)
        for key, value in expected.weights.items():
            np.testing.assert_array_equal(found.weights[key], value, err_msg=key)
        for array, other in zip(found.estimates, expected.estimates, strict=True):
            np.testing.assert_array_equal(array, other)


def hand_over(_: None, rank: int, ranks: int) -> tuple[list[str], float]:
    """Rank 0 sends to the other one: small, large, large again, and large by reference of another's choosing is refused."""
    worker = Worker(f"learner {rank}")
    if rank == 0:
        values = [
            torch.arange(10.0),
            {"a": torch.arange(50_000.0), "none": torch.empty(0, 3)},
            torch.full((60_000,), 2.0, dtype=torch.bfloat16),
        ]
        parcels = [worker.send(value, to=1) for value in values]
        dist.broadcast_object_list(parcels, 0)
        with pytest.raises(
            ValueError, match=r"^learner 0: found a str for rank 1; point to point go a tensor"
        ):
            worker.send("x" * 100_000, to=1, way="collective")
        dist.barrier()
        return [parcel.way for parcel in parcels], 0.0
    parcels = [None] * 3
    dist.broadcast_object_list(parcels, 0)
    small, both, half = (worker.recv(parcel, 60.0) for parcel in parcels)
    assert both["none"].shape == (0, 3)
    assert half.dtype is torch.bfloat16
    dist.barrier()
    with pytest.raises(DeadlineExceeded, match=r"^learner 1: nothing came of learner 0 within 0 s"):
        worker.recv(replace(parcels[1], tag=99), 0.2)
    spans = [(span.name, dict(span.args)) for span in worker.spans.drain()]
    assert spans[1] == ("recv", {"way": "collective", "bytes": 200_000, "source": "learner 0"})
    return [parcel.way for parcel in parcels], float(
        sum(one.double().sum() for one in (small, both["a"], half))
    )


def test_workers_of_one_process_group_hand_tensors_over_point_to_point(ranks):
    (ways, _), (same, total) = ranks(None, 2, hand_over)
    assert ways == same == ["inline", "collective", "collective"]
    assert total == 45.0 + 50_000 * 49_999 / 2 + 120_000


@pytest.mark.parametrize(("name", "count", "size", "learner", "algorithm", "busy"), CASES)
def test_every_family_learns_divided_as_it_does_whole(
    ranks, family, name, count, size, learner, algorithm, busy
):
    case = Case(family(name), learner, algorithm, warm="lora" not in learner)
    expected = run(case, 0, 1)
    divided = replace(case, learner={**learner, **FSDP, "fsdpSize": size}, busy=busy)
    found = ranks(divided, count)
    for one in found:
        close(one, expected)
    for array, other in zip(found[0].estimates, expected.estimates, strict=True):
        np.testing.assert_allclose(array, other, rtol=1e-5, atol=1e-5)
    # Nobody holds more than its share, but for rows that do not divide.
    share = size or count
    assert all(one.held < expected.held / share * 1.5 for one in found)
    assert sum(one.held for one in found) == expected.held * count // share


@pytest.mark.parametrize(
    ("name", "count", "size", "learner", "algorithm", "busy"),
    [
        ("llama", 2, 2, AGAIN, {**PPO, **IN_REWARD}, None),
        ("qwen3", 4, 2, {**FSDP, **LORA}, KL, 1),
        ("phi3", 2, 2, {**FSDP, **AGAIN}, {**PPO, **IN_REWARD}, None),
        ("qwen3-moe", 2, 2, FSDP, KL, None),
    ],
)
def test_ranks_that_share_sequences_learn_as_one_process(
    ranks, family, name, count, size, learner, algorithm, busy
):
    case = Case(family(name), learner, algorithm, warm="lora" not in learner)
    expected = run(case, 0, 1)
    found = ranks(replace(case, learner={**learner, "contextSize": size}, busy=busy), count)
    for one in found:
        close(one, expected)
    for one in found[:size]:
        for array, other in zip(one.estimates, expected.estimates, strict=True):
            np.testing.assert_allclose(array, other, rtol=1e-5, atol=1e-5)


def refused(case: Case, rank: int, ranks: int) -> str:
    """The sentence with which it does not begin."""
    with pytest.raises(ModelError) as caught:
        Learner(case.folder, case.spec, rank=rank, ranks=ranks)
    return str(caught.value)


@pytest.mark.parametrize(
    ("name", "size", "why"),
    [
        ("llama", 4, "found 4, allowed for a model of 4 attention heads and 2 of keys and values: 1, 2"),
        (
            "gpt2",
            2,
            "GPT2LMHeadModel cannot be computed by processes that share a sequence (it gives 8 columns",
        ),
        ("mamba", 2, "found 2, but MambaForCausalLM has no attention that the library looks up, allowed: 1"),
    ],
)
def test_what_cannot_be_shared_is_said_when_a_model_is_opened(ranks, family, name, size, why):
    found = ranks(Case(family(name), {"contextSize": size}), size, refused)
    assert len(set(found)) == 1
    assert found[0].startswith("spec.learner.contextSize: ")
    assert why in found[0]


@pytest.mark.parametrize(
    ("name", "learner", "algorithm", "busy"),
    [
        ("llama", {}, KL, None),  # whole on both ranks
        ("llama", FSDP, KL, 1),
        ("qwen3", {**FSDP, **LORA}, KL, None),
        ("gpt2", FSDP, IN_REWARD, None),
    ],
)
def test_a_step_in_parts_is_the_same_step(ranks, family, name, learner, algorithm, busy):
    case = Case(family(name), learner, algorithm, steps=3, busy=busy)
    whole, parts = ranks(case, 2), ranks(replace(case, parts=3, away=True), 2)
    for found, expected in zip(parts, whole, strict=True):
        np.testing.assert_allclose(found.losses, expected.losses, rtol=0, atol=1e-6)
        np.testing.assert_allclose(found.norms, expected.norms, rtol=1e-6, atol=1e-6)
        for key, value in expected.weights.items():
            np.testing.assert_allclose(found.weights[key], value, rtol=0, atol=1e-6, err_msg=key)


@pytest.mark.parametrize(
    ("name", "learner", "algorithm", "count", "others"),
    [
        ("llama", LORA, KL, 2, [4]),
        ("qwen3", {"optimizerOffload": True}, {**PPO, **IN_REWARD}, 4, [2, 3]),
        ("qwen3-moe", {**LORA, "fsdpSize": 2}, KL, 4, []),
    ],
)
def test_a_run_goes_on_with_other_numbers_of_ranks(
    ranks, family, tmp_path, name, learner, algorithm, count, others
):
    """Each rank writes its own part, and whoever goes on reads the rows that it needs of all of them."""
    saved, learner = tmp_path / "saved", {**learner, **FSDP}
    case = Case(family(name), learner, algorithm)
    straight = ranks(case, count)[0]
    ranks(replace(case, steps=3, saved=saved), count)
    assert read_shapes(saved) == read_shapes(case.folder)
    assert len(shards_of("optimizer", [path.name for path in saved.iterdir()])) == count
    assert len(weight_files(saved)) >= count
    rest = replace(case, first=3, resumed=saved)
    same = ranks(rest, count)[0]
    assert (same.losses, same.norms) == (straight.losses[3:], straight.norms[3:])
    for kind, value in straight.weights.items():
        assert np.array_equal(same.weights[kind], value), kind
    found = [ranks(replace(rest, learner={**learner, "fsdpSize": None}), other)[0] for other in others]
    for other in (*found, run(rest, 0, 1)):
        close(other, replace(straight, losses=straight.losses[3:], norms=straight.norms[3:]))


@pytest.mark.parametrize(("name", "count", "size"), [("llama", 4, 2), ("qwen3-moe", 3, None)])
def test_large_tensors_are_gathered_some_rows_at_a_time(
    ranks, family, name: str, count: int, size: int | None
):
    case = Case(family(name), {**FSDP, "fsdpSize": size}, {})
    found = ranks(case, count, pieces)
    assert len(set(found)) == 1
    assert found[0] > 10


def test_what_one_process_saved_is_gone_on_from_divided(ranks, family, tmp_path):
    case = Case(family("qwen3-moe"))
    straight = run(case, 0, 1)
    run(replace(case, steps=2, saved=tmp_path / "saved"), 0, 1)
    assert "model.layers.1.mlp.experts.2.down_proj.weight" in read_shapes(tmp_path / "saved")
    opened, said = AutoModelForCausalLM.from_pretrained(tmp_path / "saved", output_loading_info=True)
    assert len(weight_files(tmp_path / "saved")) > 1, "an export of several files, which the library opens"
    assert not any(said.values()), said
    names = {name for name, value in opened.state_dict().items() if value.ndim}
    assert names >= {name.partition("/")[2].removeprefix("model.") for name in straight.weights}
    rest = ranks(replace(case, learner=FSDP, first=2, resumed=tmp_path / "saved"), 3)[0]
    close(rest, replace(straight, losses=straight.losses[2:], norms=straight.norms[2:]))


@pytest.mark.parametrize(("name", "learner"), [("llama", LORA), ("gpt2", AGAIN), ("qwen3-moe", {})])
def test_layers_that_are_gathered_in_bfloat16_learn_the_same_but_for_rounding(ranks, family, name, learner):
    case = Case(family(name), learner, KL, {"dtype": "bfloat16"}, steps=1)
    expected = run(case, 0, 1)
    found = ranks(replace(case, learner={**learner, **FSDP}), 2)[1]
    np.testing.assert_allclose(found.losses, expected.losses, rtol=0, atol=0.03)
    np.testing.assert_allclose(found.norms, expected.norms, rtol=0.03)


def chosen(names: Sequence[Sequence[str]], rank: int, ranks: int) -> str:
    """What ranks choose among the names that each of them has."""
    shape = HeadShape(50, 16, 23, 0.7, torch.float32, learns=True, entropy_learns=False)
    ways = {name: head_way(TORCH) for name in names[rank]}
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(head_choice, "head_way", ways.__getitem__)
        return choose(shape, torch.device("cpu"), ranks, (OURS.name, "one", "other")).line


def test_ranks_choose_the_same_way_of_log_probs_and_one_that_each_has(ranks):
    lines = ranks([["one", "other"], ["other"]], 2, chosen)
    heads = {line.partition(" (")[0].rpartition(": ")[2] for line in lines}
    assert len(heads) == 1
    assert "one: another rank cannot" in lines[0]
    assert "one: KeyError: 'one'" in lines[1]
    times = [line.partition("(")[2].partition(" ms")[0] for line in lines]
    assert times[0] == times[1], "those of the slowest rank"


def run_by_torch(case: Case, rank: int, ranks: int) -> Outcome:
    """The run, with log-probs by torch's kernel, which nothing but a GPU would choose."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(HeadChooser, "choose", by_torch)
        return run(case, rank, ranks)


def by_torch(_: HeadChooser, policy: Policy, reference: Policy | None) -> None:
    for one in (policy, reference):
        if one is not None:
            one.way = head_way(TORCH)


@pytest.mark.parametrize(
    ("name", "learner", "algorithm"),
    [("llama", {}, {**KL, "miniBatches": 2}), ("qwen3", {}, KL), ("qwen3", LORA, IN_REWARD)],
)
def test_a_head_that_is_divided_is_gathered_for_another_way_too(ranks, family, name, learner, algorithm):
    case = Case(family(name), learner, algorithm, steps=2)
    for found in ranks(replace(case, learner={**learner, **FSDP}), 2, run_by_torch):
        close(found, run(case, 0, 1))
