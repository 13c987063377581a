"""Which versions are lent: whole ones that come from a store which has room to keep them."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

import numpy as np
import pytest
import torch
from kept_blocks import KeptBlocks

from rl_trainer.weights.payload import lent_rows, pack_weights, unpack_weights
from rl_trainer.weights.source import LazyTensor, TensorSource, source_of
from rl_trainer.weights.transports.base import Offer
from rl_trainer.weights.transports.create import create_publisher, create_receiver

TENSORS = {"large": torch.arange(2000.0).view(4, 500), "half": torch.arange(30).to(torch.bfloat16)}
PADDED = 8000 + 64


def source() -> TensorSource:
    return source_of({name: LazyTensor.of(value) for name, value in TENSORS.items()})


@pytest.mark.parametrize("transport", ["objectStore", "auto", "collective", "delta"])
def test_a_version_is_lent_if_the_store_has_room_and_it_is_the_stores(transport):
    store, asked = KeptBlocks(), list[int]()

    def lends(most: int, arrays: Sequence[np.ndarray]) -> bool:
        asked.append(sum(one.nbytes for one in arrays))
        return asked[-1] <= most

    whole = transport in ("objectStore", "auto")
    published = create_publisher(transport, store, rank=0).publish(Offer(source), 4)
    assert published is not None
    for most in (PADDED, PADDED - 1):
        receiver = create_receiver(transport, store, place="here", lends=partial(lends, most))
        found = receiver.receive(published, 1.0)
        for name, value in TENSORS.items():
            one = lent_rows(found, [(name, 0)])
            assert (one is not None) == (whole and most == PADDED)
            assert one is None or torch.equal(one, value)
        assert (
            lent_rows(create_receiver(transport, store, place="here").receive(published, 1.0), [("large", 0)])
            is None
        )
    assert asked == ([PADDED] * 2 if whole else [])


def test_what_is_put_together_is_not_lent():
    found = unpack_weights(list(pack_weights(source(), 1, limit=4096)), lent=True)
    assert lent_rows(found, [("large", 0)]) is None
    assert lent_rows(found, [("half", 0)]) is not None
    assert lent_rows(found, [("none", 0)]) is None
    assert lent_rows(TENSORS, [("half", 0)]) is None
