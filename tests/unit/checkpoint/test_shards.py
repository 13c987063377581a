"""Who writes which tensors into which files."""

from __future__ import annotations

import pytest

from rl_trainer.checkpoint.shards import deal, model_shards, shard_name, shards_of

SIZES = {"embed": 40, "a": 10, "b": 10, "c": 10, "norm": 1, "head": 40, "scale": 1}


def test_every_tensor_has_one_owner_and_the_owners_have_about_the_same():
    for owners in (1, 2, 3, 4, 9):
        found = deal(SIZES, owners)
        assert found.keys() == SIZES.keys()
        loads = [sum(SIZES[name] for name in SIZES if found[name] == owner) for owner in range(owners)]
        assert sum(loads) == sum(SIZES.values())
        assert max(loads) <= sum(SIZES.values()) / owners + 40


@pytest.mark.parametrize("owners", [1, 2, 3, 9])
@pytest.mark.parametrize("limit", [1, 10, 25, 1000])
def test_files_hold_every_tensor_once_and_no_more_than_the_limit(owners: int, limit: int):
    found = model_shards("model/model", SIZES, owners, limit)
    assert sorted(name for shard in found for name in shard.tensors) == sorted(SIZES)
    assert [shard.name for shard in found] == [
        shard_name("model/model", index, len(found)) for index in range(len(found))
    ]
    for shard in found:
        assert shard.tensors
        assert len(shard.tensors) == 1 or sum(SIZES[name] for name in shard.tensors) <= limit
        order = [list(SIZES).index(name) for name in shard.tensors]
        assert order == sorted(order), "wide numbers first, as the source has them"
    assert {shard.owner for shard in found} == set(range(min(owners, len(SIZES))))


def test_one_small_model_of_one_rank_is_one_file_of_the_plain_name():
    (shard,) = model_shards("model", SIZES, 1)
    assert (shard.name, shard.owner, list(shard.tensors)) == ("model.safetensors", 0, list(SIZES))
    assert [one.name for one in model_shards("model", {}, 3)] == ["model.safetensors"]


def test_the_files_of_a_part_are_found_again_whoever_wrote_them():
    names = ["optimizer-00002-of-00002.safetensors", "optimizer-00001-of-00002.safetensors"]
    other = ["critic.safetensors", "model/optimizer.safetensors", "optimizer.json", "optimizer-1.safetensors"]
    assert shards_of("optimizer", [*names, *other]) == tuple(sorted(names))
    assert shards_of("optimizer", ["optimizer.safetensors", *other]) == ("optimizer.safetensors",)
    assert shards_of("adapter/adapter_model", ["adapter/adapter_model.safetensors"]) != ()
    assert shards_of("optimizer", other) == ()
