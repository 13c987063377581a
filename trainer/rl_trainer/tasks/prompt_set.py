"""The prompts of a file or data set: each is made from its row when it is asked for."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import overload

from rl_trainer.tasks.rows import Row, Rows
from rl_trainer.tasks.types import Prompt


class PromptSet(Sequence[Prompt]):
    """One prompt per row, without an index.

    Args:
        rows: of the file or data set.
        make: row -> prompt; must always give the same one. TaskError when the row cannot be used.
    """

    def __init__(self, rows: Rows, make: Callable[[Row], Prompt]) -> None:
        self._rows, self._make = rows, make

    def __len__(self) -> int:
        return len(self._rows)

    @overload
    def __getitem__(self, number: int) -> Prompt: ...

    @overload
    def __getitem__(self, number: slice) -> Sequence[Prompt]: ...

    def __getitem__(self, number: int | slice) -> Prompt | Sequence[Prompt]:
        """One prompt, or some; see `make` for errors."""
        if isinstance(number, slice):
            return [self[one] for one in range(*number.indices(len(self)))]
        return self._make(self._rows[number])

    def __iter__(self) -> Iterator[Prompt]:
        return map(self._make, self._rows)
