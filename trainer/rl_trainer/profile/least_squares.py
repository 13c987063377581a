"""Linear least squares whose observations come one by one, and from several processes. Pure."""

from __future__ import annotations

import itertools
from collections.abc import Sequence

import numpy as np

# A fit with one more feature is taken when it leaves less than this share of what is left without it.
_BETTER = 1 - 1e-9


class LeastSquares:
    """y = sum of c_i x_i with c_i >= 0, by the sums of products of all observations: as small after a million as after ten.

    Args:
        features: how many x there are; a constant is one that is always 1.
    """

    def __init__(self, features: int) -> None:
        self._size = features + 1
        self._sums = [0.0] * (self._size * (self._size + 1) // 2 + 1)

    @property
    def count(self) -> float:
        """Observations, each as much as it still weighs."""
        return self._sums[-1]

    def add(self, *numbers: float) -> None:
        """One observation: its x, then its y."""
        sums, place = self._sums, 0
        for index, first in enumerate(numbers):
            for second in numbers[index:]:
                sums[place] += first * second
                place += 1
        sums[place] += 1.0

    def drain(self) -> list[float]:
        """All that is known, for `merge`; from now on nothing is."""
        found, self._sums = self._sums, [0.0] * len(self._sums)
        return found

    def merge(self, sums: Sequence[float]) -> None:
        """Adds what another one has drained."""
        self._sums = [one + other for one, other in zip(self._sums, sums, strict=True)]

    def forget(self, kept: float) -> None:
        """From now on earlier observations weigh `kept`, 0 to 1, of what they did."""
        self._sums = [kept * one for one in self._sums]

    def mean(self, feature: int) -> float:
        """Of a feature over all observations, the first being a constant 1."""
        return self._sums[feature] / self.count

    def varies(self, feature: int) -> bool:
        """Whether a feature has differed by a tenth or more, so that a fit can tell it from the constant, the first one."""
        if not self.count:
            return False
        mean = self.mean(feature)
        place = sum(self._size - row for row in range(feature))  # of its square
        return self._sums[place] / self.count - mean * mean > (0.1 * mean) ** 2

    def fit(self) -> tuple[float, ...] | None:
        """The coefficients, none below 0; None: there is no observation.

        Of features that say the same, the first is taken. A least-squares solution without negative coefficients is one
        without bounds over some of the features (Lawson and Hanson 1974, ch. 23), so all choices of them are tried.
        """
        if not self.count:
            return None
        products = np.zeros((self._size, self._size))
        products[np.triu_indices(self._size)] = self._sums[:-1]
        products += np.triu(products, 1).T
        features = self._size - 1
        scale = np.sqrt(np.diag(products)[:features])
        used = [index for index in range(features) if scale[index] > 0]
        left, found = float(products[-1, -1]), np.zeros(features)
        for size in range(1, len(used) + 1):
            for chosen in itertools.combinations(used, size):
                at = list(chosen)
                matrix = products[np.ix_(at, at)] / np.outer(scale[at], scale[at])
                if np.linalg.eigvalsh(matrix)[0] < 1e-12:  # two of them are the same
                    continue
                solution = np.linalg.solve(matrix, products[at, -1] / scale[at]) / scale[at]
                error = max(0.0, float(products[-1, -1] - solution @ products[at, -1]))
                if (solution >= 0).all() and error < left * _BETTER:
                    left, found = error, np.zeros(features)
                    found[at] = solution
        return tuple(float(one) for one in found)
