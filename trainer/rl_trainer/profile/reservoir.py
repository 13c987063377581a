"""A draw of bounded size from numbers that come one by one, in which late ones are more likely. Pure."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np


class Reservoir:
    """At most `most` of all numbers that came: each new one takes the place of one drawn at random, so that what came n
    numbers ago is still there with a chance of about exp(-n / most) (Aggarwal 2006, biased reservoir sampling).

    Attributes:
        kept: the numbers drawn.
    """

    def __init__(self, most: int, seed: int) -> None:
        self.most = most
        self.kept: list[int] = []
        self._random = np.random.default_rng(seed)

    def add(self, numbers: Iterable[int]) -> None:
        """More numbers."""
        for number in numbers:
            if len(self.kept) < self.most:
                self.kept.append(number)
            else:
                self.kept[int(self._random.integers(self.most))] = number
