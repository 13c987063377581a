"""How a batch is cut: groups into mini-batches, tokens over ranks, sequences into micro-batches.

Pure and deterministic.

Order of use in one training step: `mini_batches` (one optimizer step each), `split_groups` (data
parallelism), `micro_batches` or `packed_micro_batches` (what fits into memory at once). None of them changes the
loss: its denominators are global (`algorithms.denominators`).
"""

from __future__ import annotations

import heapq
import itertools
import math
from collections.abc import Sequence

import numpy as np

from rl_trainer.model.first_fit import Rooms

# What one more micro-batch may cost, in tokens: the price of a forward and backward pass.
OVERHEAD_TOKENS = 256
# A rank may have so much of its even share of the tokens before a group is cut: each piece computes its prompt again.
MOST_OF_EVEN_SHARE = 1.25


def micro_batches(
    lengths: Sequence[int], tokens_per_micro_batch: int, *, overhead_tokens: int = OVERHEAD_TOKENS
) -> list[list[int]]:
    """Cut sequences into micro-batches whose padded size, `members * longest`, is within a budget.

    Sequences are sorted by length and the sorted row is cut where the total cost `sum(padded tokens + overhead_tokens)` is
    least (dynamic programming over all contiguous cuts, exact). The overhead is the price of one more forward and backward
    pass in tokens: 0 gives the least padding, a large value the fewest micro-batches.

    Args:
        lengths: [N] tokens of each sequence (prompt and completion), each >= 1.
        tokens_per_micro_batch: the budget in padded tokens, >= 1.
        overhead_tokens: what one more micro-batch may cost at most in padding, >= 0.

    Returns:
        Lists of indices into `lengths`, a partition, longest sequences first (an allocation that fails, fails
        at once). A sequence longer than the budget is a micro-batch of its own.
    """
    order = _longest_first(lengths)
    count = len(order)
    ordered = np.array([lengths[index] for index in order], dtype=np.int64)
    # best[i]: least cost of the sequences i.. ; next_cut[i]: where the micro-batch that starts at i ends.
    best = np.zeros(count + 1, dtype=np.int64)
    next_cut = np.zeros(count, dtype=np.int64)
    for start in range(count - 1, -1, -1):
        longest = int(ordered[start])
        members = min(count - start, max(1, tokens_per_micro_batch // longest))
        sizes = np.arange(1, members + 1, dtype=np.int64)
        cost = sizes * longest + overhead_tokens + best[start + 1 : start + members + 1]
        # The last of equal minima: the larger micro-batch, so fewer of them.
        choice = members - 1 - int(np.argmin(cost[::-1]))
        best[start] = cost[choice]
        next_cut[start] = start + choice + 1
    batches: list[list[int]] = []
    start = 0
    while start < count:
        end = int(next_cut[start])
        batches.append(order[start:end])
        start = end
    return batches


def packed_micro_batches(
    lengths: Sequence[int],
    tokens_per_micro_batch: int,
    *,
    attention_scale: float = math.inf,
    one_row: bool = False,
    overhead_tokens: int = OVERHEAD_TOKENS,
) -> list[list[int]]:
    """The same for models that pack several sequences into a row (`model.row_packing`), rows of the longest one's width.

    A token costs `1 + width / attention_scale`: attention with a mask is computed over the whole width. The budget holds
    for all places of the rows.

    Args:
        lengths, tokens_per_micro_batch, overhead_tokens, returns: as of `micro_batches`.
        attention_scale: the width of a row at which attention costs as much as all other products.
        one_row: all of a micro-batch is one row, whose attention is computed within each sequence.
    """
    order = _longest_first(lengths)
    ordered = [lengths[index] for index in order]
    if one_row:
        cuts = _cuts_of_one_row(ordered, tokens_per_micro_batch, overhead_tokens)
    else:
        cuts = _cuts_of_rows(ordered, tokens_per_micro_batch, attention_scale, overhead_tokens)
    batches: list[list[int]] = []
    start = 0
    while start < len(order):
        batches.append(order[start : cuts[start]])
        start = cuts[start]
    return batches


def _cuts_of_rows(ordered: Sequence[int], budget: int, attention_scale: float, overhead: int) -> list[int]:
    """Where the micro-batch that starts at each of these falling lengths ends, at least cost of it and all after it."""
    count = len(ordered)
    best = [0.0] * (count + 1)
    next_cut = [0] * count
    for start in range(count - 1, -1, -1):
        width = ordered[start]
        price = 1.0 + width / attention_scale
        rooms = Rooms(width)
        best[start] = math.inf
        for end in range(start + 1, count + 1):
            rooms.add(ordered[end - 1])
            tokens = len(rooms) * width
            if tokens > budget and end > start + 1:
                break
            cost = tokens * price + overhead + best[end]
            if cost <= best[start]:  # of equal ones the larger micro-batch
                best[start], next_cut[start] = cost, end
    return next_cut


def _cuts_of_one_row(ordered: Sequence[int], budget: int, overhead: int) -> list[int]:
    """The same where a micro-batch has as many places as tokens."""
    count = len(ordered)
    before = np.concatenate([[0], np.cumsum(np.array(ordered, dtype=np.int64))])
    best = np.zeros(count + 1, dtype=np.int64)
    next_cut = [0] * count
    for start in range(count - 1, -1, -1):
        last = max(start + 1, int(np.searchsorted(before, before[start] + budget, side="right")) - 1)
        cost = before[start + 1 : last + 1] - before[start] + overhead + best[start + 1 : last + 1]
        choice = len(cost) - 1 - int(np.argmin(cost[::-1]))
        best[start] = cost[choice]
        next_cut[start] = start + 1 + choice
    return next_cut


def split_over_ranks(lengths: Sequence[int], ranks: int) -> list[list[int]]:
    """Split sequences over data-parallel ranks so that all have nearly the same number of tokens.

    Longest first, each to the rank with the fewest tokens (Graham's LPT rule, SIAM J. Appl. Math. 17(2),
    1969): the fullest rank exceeds the emptiest by at most the longest sequence, and the best possible
    maximum by at most a third. The number of sequences per rank may differ; with fewer sequences than ranks,
    some ranks get none and must still take part in the collectives.

    Args:
        lengths: [N] tokens of each sequence, each >= 1.
        ranks: number of ranks, >= 1.

    Returns:
        `ranks` lists of indices into `lengths`, a partition, each in ascending order.
    """
    parts: list[list[int]] = [[] for _ in range(ranks)]
    load = [(0, rank) for rank in range(ranks)]  # a heap: ties go to the lowest rank
    for index in _longest_first(lengths):
        tokens, rank = load[0]
        parts[rank].append(index)
        heapq.heapreplace(load, (tokens + lengths[index], rank))
    return [sorted(part) for part in parts]


def split_groups(lengths: Sequence[int], groups: Sequence[int], ranks: int) -> list[list[int]]:
    """Split sequences over data-parallel ranks, groups whole: a prompt is computed once then, and fetched by one rank.

    As `split_over_ranks`, with groups for sequences. Where that gives a rank more than `MOST_OF_EVEN_SHARE` of its even
    share (fewer groups than ranks, or one much longer than others), that rank's largest group is cut in two, until none has
    more, or has nothing to cut.

    Args:
        lengths: [N] tokens of each sequence, each >= 1.
        groups: [N] which group each is of.
        ranks: number of ranks, >= 1.

    Returns:
        `ranks` lists of indices into `lengths`, a partition, each in ascending order.
    """
    whole: dict[int, list[int]] = {}
    for index, group in enumerate(groups):
        whole.setdefault(group, []).append(index)
    pieces = list(whole.values())
    while True:
        sizes = [sum(lengths[index] for index in piece) for piece in pieces]
        split = split_over_ranks(sizes, ranks)
        loads = [sum(sizes[piece] for piece in part) for part in split]
        fullest = loads.index(max(loads))
        cuttable = [piece for piece in split[fullest] if len(pieces[piece]) > 1]
        if loads[fullest] * ranks <= MOST_OF_EVEN_SHARE * sum(sizes) or not cuttable:
            return [sorted(index for piece in part for index in pieces[piece]) for part in split]
        largest = max(cuttable, key=lambda piece: sizes[piece])
        pieces[largest : largest + 1] = _halves(pieces[largest], lengths)


def _halves(piece: list[int], lengths: Sequence[int]) -> list[list[int]]:
    """Two pieces, none empty, of tokens as equal as the order allows."""
    before = list(itertools.accumulate(lengths[index] for index in piece))
    cut = min(range(1, len(piece)), key=lambda at: abs(2 * before[at - 1] - before[-1]))
    return [piece[:cut], piece[cut:]]


def mini_batches(groups: int, count: int, *, seed: int | Sequence[int] = 0) -> list[list[int]]:
    """Cut the groups of one step into mini-batches, one optimizer step each.

    Groups stay whole: their samples are weighed against one another. One mini-batch keeps the given order;
    several are drawn at random without replacement, so that no mini-batch holds only the groups that came
    first (the short answers).

    Args:
        groups: number of groups, >= 0.
        count: mini-batches wanted, >= 1.
        seed: key of the shuffle, for example `(run seed, step, epoch)`; the same key gives the same cut.

    Returns:
        At most `count` non-empty lists of group indices, a partition; sizes differ by at most one.
    """
    if groups == 0:
        return []
    if count == 1:
        return [list(range(groups))]
    order = np.random.default_rng(seed).permutation(groups)
    return [sorted(part.tolist()) for part in np.array_split(order, min(count, groups))]


def _longest_first(lengths: Sequence[int]) -> list[int]:
    """Indices by falling length, equal lengths by rising index."""
    return sorted(range(len(lengths)), key=lambda index: (-lengths[index], index))
