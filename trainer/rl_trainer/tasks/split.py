"""Which prompts are trained on and which are held out: no text is ever both. Pure.

Generators repeat questions at different positions, so positions cannot tell the two apart: texts do.
"""

from __future__ import annotations

import array
import bisect
import hashlib
import random
from collections.abc import Callable, Iterator, Sequence
from functools import cached_property, lru_cache

import numpy as np

from rl_api import RunSpec
from rl_api.errors import TaskError
from rl_trainer.tasks.rows import SplitRows
from rl_trainer.tasks.types import Prompt

BLOCK = 500
"""A source of endless prompts may make this many consecutive positions of a stream at once."""

# A stream that repeats itself this often in a row has (almost) nothing new left.
_MISSES = 100
# Tries for one training prompt: where only 1 % of the draws are free to train on, all fail with a chance of 1e-22.
_TRIES = 5000
_TRIES_PER_STREAM = 64
# Held-out prompts of a run that has no evaluation, but a score at which its warm start ends.
UNTIL_SCORE_SAMPLES = 64


def heldout_count(spec: RunSpec) -> int:
    """Prompts kept out of training: for evaluation, and for `warmStart.untilScore`."""
    if spec.task.evaluation is not None:
        return spec.task.evaluation.samples
    return UNTIL_SCORE_SAMPLES if spec.warm_start and spec.warm_start.until_score is not None else 0


def derive_seed(*parts: int | str) -> int:
    """A seed in [0, 2**31) made from the parts; the same in every process, unlike `hash`."""
    digest = hashlib.blake2b("\x1f".join(map(str, parts)).encode(), digest_size=8).digest()
    return int.from_bytes(digest, "big") >> 33


class EndlessSplit:
    """Splits what a generator draws, prompts whose `index` is not set yet.

    Held out are the first `heldout` draws of different text of a stream of their own. Training index i is
    position i of the training stream, or, where that is held out, a draw that depends on i and the number of
    tries alone.

    Args:
        draw: (stream seed, position) -> prompt. Must always give the same one.
        seed: the run's seed.
        heldout: how many prompts are held out.
        what: the source, in words, for the error.
    """

    def __init__(self, draw: Callable[[int, int], Prompt], seed: int, heldout: int, what: str) -> None:
        self._draw, self._seed, self._count, self._what = draw, seed, heldout, what

    def heldout(self) -> list[Prompt]:
        """The held-out prompts; TaskError when there are too few distinct ones."""
        return list(self._held.values())

    def training(self, index: int) -> Prompt:
        """The prompt of training index `index`; TaskError when there are too few distinct ones."""
        held = self._held
        for attempt in range(_TRIES):
            prompt = self._draw(*self._place(index, attempt))
            if prompt.text not in held:
                return prompt
        raise self._too_few(len(held))

    def _place(self, index: int, attempt: int) -> tuple[int, int]:
        if attempt == 0:
            return derive_seed(self._seed, "training"), index
        # Within the same block, as another block may be expensive to make.
        position = index - index % BLOCK + derive_seed(self._seed, "again", index, attempt) % BLOCK
        if attempt < _TRIES_PER_STREAM:
            return derive_seed(self._seed, "training"), position
        return derive_seed(self._seed, "again", attempt // _TRIES_PER_STREAM), position

    @cached_property
    def _held(self) -> dict[str, Prompt]:
        held: dict[str, Prompt] = {}
        if self._count == 0:
            return held
        stream, position, misses = derive_seed(self._seed, "heldout"), 0, 0
        while misses < _MISSES:
            prompt = self._draw(stream, position)
            position += 1
            if prompt.text in held:
                misses += 1
            elif len(held) < self._count:
                held[prompt.text] = prompt
                misses = 0
            else:  # one more distinct prompt: something is left to train on
                return held
        raise self._too_few(len(held))

    def _too_few(self, found: int) -> TaskError:
        return TaskError(
            f"{self._what} has too few distinct prompts: {self._count} are to be held out "
            f"(task.evaluation.samples) and others to be trained on, but only {found} were found; "
            "lower task.evaluation.samples or choose arguments that give more prompts"
        )


class FiniteSplit:
    """Splits a file: the prompts held out, and those trained on in every epoch's order.

    Which texts are held out depends on the seed and the texts, not on their order in the file. Every prompt with a held-out
    text is kept out of training; other duplicates are trained on as often as they are in the file. Of the prompts only
    numbers are kept.

    Args:
        prompts: of the file.
        seed: the run's seed.
        heldout: how many distinct prompts are held out.
        what: the source, in words, for the error.
        rows: what another process has found with the same arguments, which saves looking at all prompts; None: look.

    Raises:
        TaskError: nothing would be left to train on.
    """

    def __init__(
        self, prompts: Sequence[Prompt], seed: int, heldout: int, what: str, rows: SplitRows | None = None
    ) -> None:
        self.rows = split_rows(prompts, seed, heldout, what) if rows is None else rows
        self._prompts, self._seed = prompts, seed
        # Two: prompts are asked for around the end of an epoch.
        self._order = lru_cache(maxsize=2)(self._shuffled)

    def heldout(self) -> list[Prompt]:
        """The held-out prompts."""
        return [self._prompts[row] for row in self.rows.held]

    def training(self, index: int) -> Prompt:
        """The prompt of a training index: of n training prompts, place `index % n` of epoch `index // n`."""
        epoch, place = divmod(index, len(self.rows.training))
        return self._prompts[int(self.rows.training[self._order(epoch)[place]])]

    def all_training(self) -> Iterator[Prompt]:
        """All that are trained on, in the order of the file."""
        return (self._prompts[row] for row in self.rows.training.tolist())

    def _shuffled(self, epoch: int) -> array.array[int]:
        order = array.array("q", range(len(self.rows.training)))
        random.Random(derive_seed(self._seed, "epoch", epoch)).shuffle(order)
        return order


def split_rows(prompts: Sequence[Prompt], seed: int, heldout: int, what: str) -> SplitRows:
    """Looks at every prompt once; arguments and errors as `FiniteSplit`."""
    ranks = array.array("q")
    # The `heldout` smallest (rank, text) of different text, and one more, which is left to train on; each its first row.
    smallest: list[tuple[int, str, int]] = []
    texts: set[str] = set()
    for row, prompt in enumerate(prompts):
        text = prompt.text
        rank = derive_seed(seed, "heldout", text)
        ranks.append(rank)
        if text in texts or (len(smallest) > heldout and (rank, text) > smallest[-1][:2]):
            continue
        bisect.insort(smallest, (rank, text, row))
        texts.add(text)
        if len(smallest) > heldout + 1:
            texts.remove(smallest.pop()[1])
    if len(smallest) <= heldout:
        raise TaskError(
            f"{what} has {len(smallest)} distinct prompts, but {heldout} are to be held out "
            "(task.evaluation.samples) and others to be trained on; lower task.evaluation.samples or "
            "add prompts"
        )
    held = smallest[:heldout]
    found = np.frombuffer(ranks, dtype=np.int64)
    # The same text has the same rank; the other way round almost always.
    alike = np.flatnonzero(np.isin(found, [rank for rank, _, _ in held])).tolist()
    out = {text for _, text, _ in held}
    taken = [row for row in alike if prompts[row].text in out]
    training = np.delete(np.arange(len(found), dtype=np.int64), taken)
    return SplitRows(tuple(row for _, _, row in held), training)


Split = EndlessSplit | FiniteSplit
