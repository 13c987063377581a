"""Full-text search over a few thousand passages in memory: BM25 with an inverted index. Pure."""

from __future__ import annotations

import heapq
import math
import re
from collections import Counter
from collections.abc import Sequence
from typing import Final

K1: Final = 1.2
B: Final = 0.75
"""The usual constants: how soon repeating a word stops to count, and how much the length of a text does."""

_WORD: Final = re.compile(r"\w+")


def words_of(text: str) -> list[str]:
    """Letters and digits that stand together, in lower case."""
    return _WORD.findall(text.lower())


def passages_of(text: str, most_words: int) -> list[str]:
    """A text cut into pieces of at most so many words (what white space separates), each on one line."""
    words = text.split()
    return [" ".join(words[begin : begin + most_words]) for begin in range(0, len(words), most_words)]


class BM25:
    """Ranks texts by how well they match the words of a query.

    score(q, d) = sum over the different words w of q of  idf(w) * tf * (K1 + 1) / (tf + K1 * (1 - B + B * len(d) / mean)),
    tf = how often w is in d,  len(d) = words of d, on average mean,
    idf(w) = ln(1 + (N - n + 0.5) / (n + 0.5)), N texts of which n have w.

    Robertson and Zaragoza, "The Probabilistic Relevance Framework: BM25 and Beyond", 2009, equation 3.15; the 1 in
    idf, which keeps it positive, is Lucene's.

    Args:
        texts: what is searched. Their places in this order are what `best` returns.
    """

    def __init__(self, texts: Sequence[str]) -> None:
        counts = [Counter(words_of(text)) for text in texts]
        lengths = [count.total() for count in counts]
        mean = sum(lengths) / len(lengths) if any(lengths) else 1.0
        within: dict[str, list[tuple[int, int]]] = {}
        for place, count in enumerate(counts):
            for word, times in count.items():
                within.setdefault(word, []).append((place, times))
        self._weights: dict[str, list[tuple[int, float]]] = {}
        for word, found in within.items():
            idf = math.log(1 + (len(counts) - len(found) + 0.5) / (len(found) + 0.5))
            self._weights[word] = [
                (place, idf * times * (K1 + 1) / (times + K1 * (1 - B + B * lengths[place] / mean)))
                for place, times in found
            ]

    def best(self, query: str, most: int) -> list[tuple[int, float]]:
        """Places and scores of the best texts, at most so many, best first; of equal ones the earlier first. Texts without
        any word of the query are none of them."""
        scores: dict[int, float] = {}
        for word in dict.fromkeys(words_of(query)):
            for place, weight in self._weights.get(word, ()):
                scores[place] = scores.get(place, 0.0) + weight
        return heapq.nsmallest(most, scores.items(), key=lambda one: (-one[1], one[0]))
