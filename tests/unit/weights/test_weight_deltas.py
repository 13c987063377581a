"""What changed between two versions: exact, never more than the block, and small where little changed."""

from __future__ import annotations

import re
from dataclasses import replace

import numpy as np
import pytest
import torch
from kept_blocks import KeptBlocks
from torch.nn.functional import cross_entropy

from rl_api.errors import DeadlineExceeded, ModelError
from rl_api.run import TinyModelSpec
from rl_trainer.model.config import parse_config
from rl_trainer.model.decoder import Decoder
from rl_trainer.model.tiny import tiny_config
from rl_trainer.weights.delta import BlockDelta, apply, encode, width_of
from rl_trainer.weights.payload import checksum_of
from rl_trainer.weights.source import LazyTensor, TensorSource, source_of
from rl_trainer.weights.transports.base import Offer
from rl_trainer.weights.transports.create import create_publisher, create_receiver
from rl_trainer.weights.transports.delta import DeltaPublisher, DeltaReceiver
from rl_trainer.weights.transports.publication import Publication

torch.set_num_threads(1)
ELEMENTS = 4096


def delta(old: np.ndarray, new: np.ndarray, width: int) -> BlockDelta:
    return encode(old, new, width=width, base=3, version=4, number=1, blocks=5, checksum=checksum_of(new))


def versions(width: int, changed: list[int], seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    """Two blocks that differ in these elements, each in one of its bytes."""
    rng = np.random.default_rng(seed)
    old = rng.integers(0, 256, ELEMENTS * width, dtype=np.uint8)
    new = old.copy()
    for element in changed:
        new[element * width + int(rng.integers(width))] ^= 1 << int(rng.integers(8))
    return old, new


@pytest.mark.parametrize("width", [1, 2, 4, 8])
@pytest.mark.parametrize(
    ("changed", "positions"),
    [
        ([], "none"),
        ([0], "gaps"),
        ([ELEMENTS - 1], "gaps"),
        ([0, 254, 509, 510, 766, 1400, ELEMENTS - 1], "gaps"),  # gaps of 253, 254, 0, 255 and above 510
        ([*range(0, ELEMENTS, 9)], "gaps"),
        ([*range(ELEMENTS // 8)], "bits"),
        ([*range(0, ELEMENTS, 3)], "bits"),
        ([*range(ELEMENTS)], "all"),
    ],
    ids=["none", "first", "last", "long gaps", "many", "an eighth", "a third", "all"],
)
def test_what_changed_is_applied_exactly(width: int, changed: list[int], positions: str):
    old, new = versions(width, changed)
    found = delta(old, new, width)
    assert found.positions == positions
    assert found.nbytes <= new.nbytes
    block = old.copy()
    apply(found, block)
    assert checksum_of(block) == found.checksum
    assert np.array_equal(block, new)


def test_any_change_comes_back():
    rng = np.random.default_rng(1)
    for share in rng.random(40) ** 4:
        old, new = versions(2, list(np.flatnonzero(rng.random(ELEMENTS) < share)), seed=2)
        found, block = delta(old, new, 2), old.copy()
        apply(found, block)
        assert np.array_equal(block, new)
        assert found.nbytes <= new.nbytes


def test_a_few_changes_are_a_few_bytes():
    old, new = versions(2, [*range(0, ELEMENTS, 100)])
    assert delta(old, new, 2).nbytes == 41 * 3  # a gap of 99 is a byte, a value two


def test_an_empty_block_is_no_change():
    empty = np.empty(0, np.uint8)
    assert delta(empty, empty, 2).positions == "none"


def test_elements_are_as_wide_as_the_narrowest_numbers():
    assert width_of({"float32", "bfloat16"}) == 2
    assert width_of({"complex128"}) == 8
    assert width_of(set()) == 1


def test_what_is_damaged_or_of_another_block_is_named():
    old, new = versions(2, [5, 300, 1000])
    found = delta(old, new, 2)
    where = "^weights of version 4 from version 3, block 2 of 5: "
    with pytest.raises(ModelError, match=where + "it is for 8192 bytes, the block has 16; start the run"):
        apply(found, np.zeros(16, np.uint8))
    for places in (found.places[:-1], np.append(found.places, 0), found.places + np.uint8(250)):
        with pytest.raises(
            ModelError, match=where + r"\d places for 3 values of 4096 elements; the transfer damaged it"
        ):
            apply(replace(found, places=places.astype(np.uint8)), old.copy())


# -- through a store -----------------------------------------------------------------------------------------------


class Policy:
    """bfloat16 weights of several blocks, of which a step changes some."""

    def __init__(self) -> None:
        self.tensors = {
            "large": torch.arange(2000.0).view(4, 500).bfloat16(),
            "fixed": torch.arange(64).float(),
            "half": torch.arange(30).to(torch.bfloat16),
        }

    def step(self, elements: int) -> None:
        self.tensors["large"].view(-1)[:elements] += 1000

    def offer(self) -> Offer:
        kept = {name: LazyTensor.of(value) for name, value in self.tensors.items()}
        return Offer(lambda: source_of(kept))

    def holds(self, found: object) -> bool:
        assert isinstance(found, dict) or hasattr(found, "keys")
        return found.keys() == self.tensors.keys() and all(  # type: ignore[union-attr,attr-defined]
            torch.equal(found[name], value)
            for name, value in self.tensors.items()  # type: ignore[index]
        )


def published(publisher: DeltaPublisher, policy: Policy, version: int) -> Publication:
    found = publisher.publish(policy.offer(), version)
    assert found is not None
    return found


def test_samplers_get_what_changed_and_joiners_the_whole():
    store, policy = KeptBlocks(), Policy()
    publisher, early, seldom = (
        DeltaPublisher(store, 0, limit=512),
        *(DeltaReceiver(store, "here") for _ in "ab"),
    )
    whole = 4032 + 256 + 64  # tensors begin at multiples of 64
    for version in range(6):
        publication = published(publisher, policy, version)
        assert publication.way == ("delta" if version else "objectStore")
        assert policy.holds(early.receive(publication, 1.0))
        assert early.received == publisher.sent == (3 * 7 if version else whole)
        if version in (0, 3):
            assert policy.holds(seldom.receive(publication, 1.0))
            assert seldom.received == (3 * 3 * 7 if version else whole), "what was missed is applied as well"
        late = DeltaReceiver(store, "here")
        assert policy.holds(late.receive(publication, 1.0))
        assert late.received == whole + version * 3 * 7
        policy.step(7)


def test_when_changes_are_as_many_bytes_as_the_whole_there_is_a_new_whole_beside_them():
    store, policy = KeptBlocks(), Policy()
    publisher, early, seldom = (
        DeltaPublisher(store, 0, limit=512),
        *(DeltaReceiver(store, "here") for _ in "ab"),
    )
    wholes = []
    for version in range(12):
        publication = published(publisher, policy, version)
        wholes += [version] if publication.whole is not None else []
        assert policy.holds(early.receive(publication, 1.0))
        assert not version or early.received < 1500, "never the whole again"
        if version in (0, 8):
            seldom.receive(publication, 1.0)
        late = DeltaReceiver(store, "here")
        assert policy.holds(late.receive(publication, 1.0))
        assert late.received < 2 * 4400
        policy.step(600)
    assert wholes == [4, 8], "each time 600 values of 2000"
    assert policy.tensors["large"].dtype == torch.bfloat16
    assert seldom.received == 4352, "it had a version from before the whole one"


def test_a_publication_that_fails_is_followed_by_a_whole_one():
    store, policy = KeptBlocks(), Policy()
    publisher = DeltaPublisher(store, 0, limit=512)
    published(publisher, policy, 0)
    shapes = {name: (value.dtype, tuple(value.shape)) for name, value in policy.tensors.items()}
    with pytest.raises(RuntimeError):
        publisher.publish(Offer(lambda: TensorSource(dict(reversed(shapes.items())), lambda: iter(()))), 1)
    assert published(publisher, policy, 2).way == "objectStore"


def test_a_version_that_is_not_received_leaves_no_half_of_it():
    store, policy = KeptBlocks(), Policy()
    publisher, receiver = DeltaPublisher(store, 0, limit=512), DeltaReceiver(store, "sampler 3")
    receiver.receive(published(publisher, policy, 0), 1.0)
    policy.step(5)
    publication = published(publisher, policy, 1)
    with pytest.raises(
        DeadlineExceeded, match=r"^sampler 3: weights of version 1 did not arrive within weightSync"
    ):
        receiver.receive(replace(publication, blocks=[99]), 60.0)
    assert policy.holds(receiver.receive(publication, 1.0))
    assert receiver.received == 3 * 5, "what it holds is still the version before"
    policy.step(5)
    publication = published(publisher, policy, 2)
    (handle,) = publication.blocks
    store.blocks[handle] = [replace(one, values=one.values ^ 1) for one in store.blocks[handle]]
    with pytest.raises(ModelError, match=r"^weights of version 2, block \d+ of 9: checksum"):
        receiver.receive(publication, 1.0)
    store.blocks[handle] = store.blocks[handle][1:]
    with pytest.raises(ModelError, match=re.escape("here: expected 9 blocks of version 2, found 8")):
        DeltaReceiver(store, "here").receive(publication, 1.0)


def test_other_ranks_publish_nothing():
    store = KeptBlocks()
    assert create_publisher("delta", store, rank=1).publish(Policy().offer(), 0) is None
    assert not store.blocks
    assert isinstance(create_receiver("delta", store, place="here"), DeltaReceiver)


def test_a_training_step_in_bfloat16_moves_little_more_than_what_changed():
    config = tiny_config(TinyModelSpec(hidden_size=64, layers=2, heads=2, kv_heads=2, intermediate_size=128))
    decoder = Decoder(parse_config(config))
    decoder.initialize(0.02, 0)
    optimizer = torch.optim.AdamW(decoder.parameters(), lr=1e-6)
    store = KeptBlocks()
    publisher, receiver = DeltaPublisher(store, 0), DeltaReceiver(store, "here")
    generator = torch.Generator().manual_seed(0)
    before: dict[str, torch.Tensor] = {}
    for version in range(4):
        lazy = {name: tensor.to(torch.bfloat16) for name, tensor in decoder.hf_tensors().items()}
        publication = publisher.publish(Offer(lambda lazy=lazy: source_of(lazy)), version)  # type: ignore[misc]
        assert publication is not None
        found = receiver.receive(publication, 1.0)
        now = {name: tensor.make().clone() for name, tensor in lazy.items()}
        assert all(torch.equal(found[name], value) for name, value in now.items())
        if before:
            changed = sum(int((now[name] != before[name]).sum()) for name in now)
            assert 0 < changed < 0.1 * sum(value.numel() for value in now.values())
            assert 2 * changed < receiver.received < 2 * 2 * changed
        before = now
        tokens = torch.randint(0, 90, (4, 32), generator=generator)
        loss = cross_entropy(decoder(tokens)[:, :-1].flatten(0, 1), tokens[:, 1:].flatten())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
