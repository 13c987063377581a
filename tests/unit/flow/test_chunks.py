import pickle

import numpy as np
import pytest

from rl_trainer.flow.chunks import BIG_BUFFER, cut, decode, encode, join, split


def over_the_wire(items, start=0, stop=None):
    encoded = [encode(item, weight) for weight, item in enumerate(items)]
    buffers = [np.frombuffer(bytes(buffer), np.uint8) for item in encoded for buffer in item.buffers]
    return split(join(encoded), buffers, start, len(items) if stop is None else stop)


def test_items_survive():
    items = [{"a": 1}, "text", b"bytes", None, [1.5, (2, 3)], np.arange(5)]
    back = [decode(item) for item in over_the_wire(items)]
    assert back[:5] == items[:5]
    np.testing.assert_array_equal(back[5], items[5])


def test_large_arrays_are_views():
    small, large = np.arange(10), np.arange(BIG_BUFFER)
    item = over_the_wire([{"small": small, "large": large}])[0]
    assert len(item.buffers) == 1
    back = decode(item)
    np.testing.assert_array_equal(back["large"], large)
    assert not np.shares_memory(back["small"], small)
    assert not back["large"].flags.writeable
    assert np.shares_memory(back["large"], item.buffers[0])


def test_part_of_a_chunk():
    items = [np.full(BIG_BUFFER, i, np.uint8) if i % 2 else i for i in range(6)]
    part = over_the_wire(items, 2, 5)
    assert [item.weight for item in part] == [2, 3, 4]
    assert decode(part[0]) == 2
    assert decode(part[1])[0] == 3
    assert decode(part[2]) == 4


def test_a_block_is_cut_without_pickling():
    block = join([encode(item, item) for item in range(5)])
    part = split(cut(block, 1, 4), (), 0, 3)
    assert [(decode(item), item.weight) for item in part] == [(1, 1), (2, 2), (3, 3)]


def test_what_plain_pickle_cannot_do():
    factor = 3
    assert decode(over_the_wire([lambda x: x * factor])[0])(7) == 21
    array = np.arange(200_000).reshape(2, -1)[:, ::2]  # not contiguous
    np.testing.assert_array_equal(decode(over_the_wire([array])[0]), array)


def test_what_nothing_can_pickle():
    with pytest.raises(TypeError, match="generator"):
        encode(x for x in ())


def test_size_counts_buffers():
    item = encode(np.zeros(BIG_BUFFER, np.uint8))
    assert item.nbytes == BIG_BUFFER + len(item.data)
    assert len(pickle.dumps(item.data)) < 1000


def test_something_else_is_no_chunk():
    with pytest.raises(ValueError, match="not a chunk"):
        split(b"x" * 100, (), 0, 1)
