"""Cuts of a batch: always a partition, within the budget, balanced, and as cheap as any other."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence

from hypothesis import given
from hypothesis import strategies as st

from rl_trainer.learner.packing import (
    MOST_OF_EVEN_SHARE,
    micro_batches,
    mini_batches,
    packed_micro_batches,
    split_groups,
    split_over_ranks,
)
from rl_trainer.model.first_fit import first_fit

lengths_strategy = st.lists(st.integers(1, 60), max_size=40)


def flat(parts: list[list[int]]) -> list[int]:
    return sorted(itertools.chain.from_iterable(parts))


def padded_tokens(lengths: Sequence[int], batches: Sequence[Sequence[int]]) -> int:
    """Tokens that `batches` compute, padding included: the sum of `members * longest`."""
    return sum(len(batch) * max(lengths[index] for index in batch) for batch in batches if batch)


def test_micro_batches_by_hand() -> None:
    """Budget 12, no overhead: 6 alone with 5 (2 * 6 = 12, one padded), 2 2 2 and 1 1 with no padding."""
    lengths = [2, 6, 1, 2, 5, 1, 2]
    assert micro_batches(lengths, 12, overhead_tokens=0) == [[1], [4], [0, 3, 6], [2, 5]]
    assert micro_batches(lengths, 12, overhead_tokens=1) == [[1, 4], [0, 3, 6], [2, 5]]
    # 12 padded tokens in the first, 5 * 2 = 10 in the second: two are the fewest that fit.
    assert micro_batches(lengths, 12, overhead_tokens=100) == [[1, 4], [0, 3, 6, 2, 5]]


def test_a_long_tail_is_not_padded_to_its_longest() -> None:
    lengths = [1000] * 2 + [100] * 100
    batches = micro_batches(lengths, 200_000)
    assert len(batches) == 2
    assert padded_tokens(lengths, batches) == sum(lengths)


def test_a_sequence_over_the_budget_is_alone() -> None:
    assert micro_batches([5, 50, 7, 60], 14, overhead_tokens=100) == [[3], [1], [2, 0]]


def test_packed_micro_batches_by_hand() -> None:
    """Budget 12: 6 and 5, which cannot share a row, by themselves; the rest in three rows of 2 and one of 1 and 1."""
    lengths = [2, 6, 1, 2, 5, 1, 2]
    assert packed_micro_batches(lengths, 12, overhead_tokens=0) == [[1], [4], [0, 3, 6, 2, 5]]
    # Beside 5 there is room for 1; and 2, 2, 2 are a row of 6.
    assert packed_micro_batches(lengths, 18, overhead_tokens=100) == [[1, 4, 0, 3, 6, 2], [5]]
    assert packed_micro_batches(lengths, 19, overhead_tokens=100, one_row=True) == [[1, 4, 0, 3, 6, 2, 5]]
    # Where attention over wide rows is dear, short sequences are by themselves.
    tail = [100] + [10] * 10
    assert len(packed_micro_batches(tail, 1000, overhead_tokens=5)) == 1
    assert len(packed_micro_batches(tail, 1000, overhead_tokens=5, attention_scale=100)) == 2


@given(lengths=lengths_strategy, budget=st.integers(1, 200), overhead=st.sampled_from([0, 5, 50]))
def test_packed_micro_batches_are_a_partition_within_the_budget(
    lengths: list[int], budget: int, overhead: int
) -> None:
    batches = packed_micro_batches(lengths, budget, attention_scale=30, overhead_tokens=overhead)
    assert flat(batches) == list(range(len(lengths)))
    for batch in batches:
        members = [lengths[index] for index in batch]
        assert len(first_fit(members, max(members))) * max(members) <= budget or len(batch) == 1
    row = packed_micro_batches(lengths, budget, one_row=True, overhead_tokens=overhead)
    assert flat(row) == list(range(len(lengths)))
    assert all(sum(lengths[index] for index in batch) <= budget or len(batch) == 1 for batch in row)
    # Sharing rows never needs more passes than padding does.
    assert len(packed_micro_batches(lengths, budget, overhead_tokens=10**6)) <= len(
        micro_batches(lengths, budget, overhead_tokens=10**6)
    )


def plainly_packed(
    lengths: list[int], budget: int, scale: float, one_row: bool, overhead: int
) -> list[list[int]]:
    """All cuts tried, each with rows filled from the first."""
    order = sorted(range(len(lengths)), key=lambda index: (-lengths[index], index))
    best: list[tuple[float, list[list[int]]]] = [(0.0, [])] * (len(order) + 1)
    for start in range(len(order) - 1, -1, -1):
        width, choice = lengths[order[start]], (math.inf, [[0]])
        for end in range(start + 1, len(order) + 1):
            members = [lengths[index] for index in order[start:end]]
            free: list[int] = []
            for length in members:
                row = next((row for row, room in enumerate(free) if room >= length), len(free))
                free += [width] * (row == len(free))
                free[row] -= length
            tokens = sum(members) if one_row else len(free) * width
            price = 1.0 if one_row else 1.0 + width / scale
            cost = tokens * price + overhead + best[end][0]
            if (tokens <= budget or len(members) == 1) and cost <= choice[0]:
                choice = cost, [order[start:end], *best[end][1]]
        best[start] = choice
    return best[0][1]


@given(
    lengths=lengths_strategy,
    budget=st.integers(1, 400),
    one_row=st.booleans(),
    overhead=st.sampled_from([0, 5, 50]),
)
def test_packed_micro_batches_are_those_of_the_plain_algorithm(
    lengths: list[int], budget: int, one_row: bool, overhead: int
) -> None:
    found = packed_micro_batches(
        lengths, budget, attention_scale=30, one_row=one_row, overhead_tokens=overhead
    )
    assert found == plainly_packed(lengths, budget, 30, one_row, overhead)


@given(lengths=lengths_strategy, budget=st.integers(1, 200), overhead=st.sampled_from([0, 5, 50]))
def test_micro_batches_are_a_partition_within_the_budget(
    lengths: list[int], budget: int, overhead: int
) -> None:
    batches = micro_batches(lengths, budget, overhead_tokens=overhead)
    assert flat(batches) == list(range(len(lengths)))
    for batch in batches:
        longest = max(lengths[index] for index in batch)
        assert len(batch) * longest <= budget or len(batch) == 1
    assert batches == micro_batches(list(lengths), budget, overhead_tokens=overhead)
    firsts = [max(lengths[index] for index in batch) for batch in batches]
    assert firsts == sorted(firsts, reverse=True)


@given(lengths=st.lists(st.integers(1, 9), max_size=7), budget=st.integers(1, 30), overhead=st.integers(0, 9))
def test_no_other_partition_is_cheaper(lengths: list[int], budget: int, overhead: int) -> None:
    """Against every partition into sets, not only the contiguous ones."""

    def cost(parts: list[list[int]]) -> int:
        return padded_tokens(lengths, parts) + overhead * len(parts)

    def partitions(items: list[int]) -> list[list[list[int]]]:
        if not items:
            return [[]]
        found = []
        for rest in partitions(items[1:]):
            found.append([[items[0]], *rest])
            for at, part in enumerate(rest):
                found.append([*rest[:at], [items[0], *part], *rest[at + 1 :]])
        return found

    def fits(part: list[int]) -> bool:
        return len(part) == 1 or padded_tokens(lengths, [part]) <= budget

    best = min(
        (cost(parts) for parts in partitions(list(range(len(lengths)))) if all(map(fits, parts))), default=0
    )
    assert cost(micro_batches(lengths, budget, overhead_tokens=overhead)) == best


def test_split_by_hand() -> None:
    """7 6 | 5 4 | 3 2 longest first to the emptier rank: 7 4 3 = 14 and 6 5 2 = 13."""
    assert split_over_ranks([2, 3, 4, 5, 6, 7], 2) == [[1, 2, 5], [0, 3, 4]]


def test_fewer_sequences_than_ranks() -> None:
    assert split_over_ranks([3], 3) == [[0], [], []]
    assert split_over_ranks([], 2) == [[], []]


@given(lengths=lengths_strategy, ranks=st.integers(1, 6))
def test_ranks_are_a_balanced_partition(lengths: list[int], ranks: int) -> None:
    parts = split_over_ranks(lengths, ranks)
    assert len(parts) == ranks
    assert flat(parts) == list(range(len(lengths)))
    loads = [sum(lengths[index] for index in part) for part in parts]
    assert max(loads) - min(loads) <= max(lengths, default=0)


@given(lengths=st.lists(st.integers(1, 9), min_size=1, max_size=6), ranks=st.integers(1, 3))
def test_the_fullest_rank_is_within_a_third_of_the_best(lengths: list[int], ranks: int) -> None:
    def fullest(assignment: tuple[int, ...]) -> int:
        return max(
            sum(length for length, rank in zip(lengths, assignment, strict=True) if rank == r)
            for r in range(ranks)
        )

    best = min(fullest(assignment) for assignment in itertools.product(range(ranks), repeat=len(lengths)))
    found = max(sum(lengths[index] for index in part) for part in split_over_ranks(lengths, ranks))
    assert 3 * found <= 4 * best


def test_groups_stay_whole_where_that_is_even_enough() -> None:
    """Three groups of 12, 10 and 20 tokens, whose members alternate in the batch: 20 | 22."""
    lengths = [6, 5, 10, 6, 5, 10]
    assert split_groups(lengths, [0, 1, 2, 0, 1, 2], 2) == [[2, 5], [0, 1, 3, 4]]


def test_of_fewer_groups_than_ranks_each_is_cut_in_two() -> None:
    assert split_groups([3, 3, 3, 3, 6, 6], [0, 0, 0, 0, 1, 1], 4) == [[0, 1], [2, 3], [4], [5]]
    assert split_groups([5], [0], 3) == [[0], [], []]
    assert split_groups([], [], 2) == [[], []]


@given(lengths=lengths_strategy, of=st.lists(st.integers(0, 9), min_size=40, max_size=40))
def test_one_rank_keeps_the_order(lengths: list[int], of: list[int]) -> None:
    assert split_groups(lengths, of[: len(lengths)], 1) == [list(range(len(lengths)))]


@given(
    lengths=lengths_strategy,
    of=st.lists(st.integers(0, 9), min_size=40, max_size=40),
    ranks=st.integers(1, 6),
)
def test_a_group_is_cut_only_for_balance(lengths: list[int], of: list[int], ranks: int) -> None:
    groups = of[: len(lengths)]
    parts = split_groups(lengths, groups, ranks)
    assert len(parts) == ranks
    assert flat(parts) == list(range(len(lengths)))
    assert parts == split_groups(lengths, groups, ranks)
    loads = [sum(lengths[index] for index in part) for part in parts]
    balanced = max(loads) * ranks <= MOST_OF_EVEN_SHARE * sum(loads)
    assert balanced or max(loads) - min(loads) <= max(lengths)
    whole = [sum(n for n, group in zip(lengths, groups, strict=True) if group == one) for one in set(groups)]
    uncut = [sum(whole[index] for index in part) for part in split_over_ranks(whole, ranks)]
    if max(uncut, default=0) * ranks <= MOST_OF_EVEN_SHARE * sum(lengths):
        homes = [{groups[index] for index in part} for part in parts]
        assert sum(map(len, homes)) == len(set(groups))


@given(groups=st.integers(0, 40), count=st.integers(1, 10), seed=st.integers(0, 5))
def test_mini_batches_are_an_even_partition(groups: int, count: int, seed: int) -> None:
    parts = mini_batches(groups, count, seed=(seed, 7))
    assert flat(parts) == list(range(groups))
    assert len(parts) == min(count, groups)
    sizes = [len(part) for part in parts]
    assert not sizes or max(sizes) - min(sizes) <= 1
    assert parts == mini_batches(groups, count, seed=(seed, 7))


def test_mini_batches_are_shuffled_by_their_key_and_one_is_not() -> None:
    assert mini_batches(20, 1) == [list(range(20))]
    assert mini_batches(20, 2, seed=(1, 0)) != mini_batches(20, 2, seed=(1, 1))
    assert mini_batches(20, 2, seed=(1, 0)) != [list(range(10)), list(range(10, 20))]
