import random
from collections import Counter
from typing import NamedTuple

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rl_api.errors import TaskError
from rl_trainer.tasks.split import BLOCK, EndlessSplit, FiniteSplit, derive_seed


class Line(NamedTuple):
    """Stands for a prompt."""

    text: str
    number: int = 0


def drawing(distinct: int):
    """A generator with so many distinct prompts, all equally likely."""
    return lambda stream, position: Line(
        f"q{random.Random(derive_seed(stream, position)).randrange(distinct)}"
    )


def endless(distinct: int, seed: int, heldout: int) -> EndlessSplit:
    return EndlessSplit(drawing(distinct), seed, heldout, "the source")


def finite(lines: list[str], seed: int, heldout: int, what: str = "f") -> FiniteSplit:
    return FiniteSplit([Line(text, number) for number, text in enumerate(lines)], seed, heldout, what)


def test_derived_seeds_are_the_same_everywhere():
    assert derive_seed(1, "training") == 353372342
    assert derive_seed(1, "2") != derive_seed("12")
    assert all(0 <= derive_seed(i) < 2**31 for i in range(100))


@given(
    st.integers(0, 2**31),
    st.integers(1, 40),
    st.floats(1.3, 50),
    st.lists(st.integers(0, 10**10), min_size=1, max_size=30),
)
@settings(deadline=None, max_examples=60)
def test_endless_training_and_heldout_never_overlap(seed, heldout, spare, indices):
    split = endless(int(heldout * spare) + 2, seed, heldout)
    held = split.heldout()
    assert len(held) == len(set(held)) == heldout
    assert not {split.training(index) for index in indices} & set(held)


@given(st.integers(0, 1000), st.lists(st.integers(0, 5000), min_size=2, max_size=20))
@settings(deadline=None, max_examples=30)
def test_endless_training_depends_on_the_index_alone(seed, indices):
    forward, backward = endless(40, seed, 20), endless(40, seed, 20)
    there = {index: forward.training(index) for index in indices}
    back = {index: backward.training(index) for index in reversed(indices)}
    assert there == back
    assert forward.heldout() == backward.heldout()


def test_endless_stream_covers_what_is_left():
    split = endless(30, 3, 10)
    assert {split.training(index) for index in range(2000)} | set(split.heldout()) == {
        Line(f"q{i}") for i in range(30)
    }


def test_endless_retries_stay_in_the_block():
    asked: list[int] = []

    def draw(stream, position):
        asked.append(position)
        return Line(f"q{random.Random(derive_seed(stream, position)).randrange(20)}")

    split = EndlessSplit(draw, 0, 10, "the source")
    split.heldout()
    asked.clear()
    for index in (BLOCK * 7, BLOCK * 7 + 1, BLOCK * 8 - 1):
        split.training(index)
    assert {position // BLOCK for position in asked} == {7}


def test_endless_another_seed_gives_other_prompts():
    first, second = endless(10**6, 1, 20), endless(10**6, 2, 20)
    assert first.heldout() != second.heldout()
    assert [first.training(i) for i in range(5)] != [second.training(i) for i in range(5)]


@pytest.mark.parametrize("distinct", [1, 5, 10])
def test_too_few_distinct_prompts_is_a_sentence(distinct):
    with pytest.raises(
        TaskError, match=rf"the source has too few distinct prompts: 10 are .* only {distinct} were"
    ):
        endless(distinct, 0, 10).training(0)


def test_a_single_spare_prompt_is_enough():
    split = endless(11, 0, 10)
    assert len({split.training(i) for i in range(20)} - set(split.heldout())) == 1


def test_without_heldout_one_prompt_is_enough():
    split = endless(1, 0, 0)
    assert split.heldout() == []
    assert split.training(5).text == "q0"


def test_gives_up_when_nothing_is_left_after_all():
    """The held-out stream promised more than the training stream holds."""
    promised = iter([f"q{i}" for i in range(11)])
    split = EndlessSplit(lambda stream, position: Line(next(promised, "q0")), 0, 10, "the source")
    with pytest.raises(TaskError, match="too few distinct prompts"):
        split.training(0)


texts = st.lists(st.sampled_from([f"q{i}" for i in range(12)]), min_size=3, max_size=60)


@given(texts, st.integers(0, 2**31), st.data())
@settings(deadline=None, max_examples=80)
def test_file_is_partitioned(lines, seed, data):
    distinct = len(set(lines))
    if distinct < 2:
        return
    heldout = data.draw(st.integers(0, distinct - 1))
    split = finite(lines, seed, heldout, "task.file: f")
    held = {line.text for line in split.heldout()}
    assert len(held) == heldout == len(split.heldout())
    n = sum(text not in held for text in lines)
    for epoch in (0, 1, 10**6):
        numbers = [split.training(epoch * n + place).number for place in range(n)]
        # Every line that is not held out once per epoch, duplicates included.
        assert sorted(numbers) == [number for number, text in enumerate(lines) if text not in held]


def test_every_epoch_has_its_own_order_and_random_access_agrees():
    split = finite([f"q{i}" for i in range(50)], 1, 10)
    n = 40
    in_order = [split.training(index) for index in range(4 * n)]
    epochs = [tuple(in_order[epoch * n : (epoch + 1) * n]) for epoch in range(4)]
    assert len(set(epochs)) == 4
    again = finite([f"q{i}" for i in range(50)], 1, 10)
    places = random.Random(0).sample(range(4 * n), 4 * n)
    assert {place: again.training(place) for place in places} == dict(enumerate(in_order))


def test_heldout_texts_do_not_depend_on_the_order_of_the_file():
    lines = [f"q{i}" for i in range(50)]
    mixed = random.Random(1).sample(lines, 50)
    first = finite(lines, 7, 10)
    second = finite(mixed, 7, 10)
    assert [line.text for line in first.heldout()] == [line.text for line in second.heldout()]


def test_another_seed_holds_out_other_lines():
    lines = [f"q{i}" for i in range(50)]
    counts = Counter(line.number for seed in range(40) for line in finite(lines, seed, 10).heldout())
    assert len(counts) == 50


@pytest.mark.parametrize("lines", [["a", "b", "c"], ["a", "a", "b", "c"]])
def test_file_too_small_is_a_sentence(lines):
    with pytest.raises(TaskError, match=r"task.file: f has 3 distinct prompts, but 3 are to be held out"):
        finite(lines, 0, 3, "task.file: f")
