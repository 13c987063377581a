"""Other names for the things of a corpus, drawn for every question: what a model remembers is then of no use to it."""

from __future__ import annotations

import random
import re
from collections.abc import Collection, Mapping
from typing import Final

_WORD: Final = re.compile(r"\w+")
_LETTERS: Final = ("bcdfghjklmnprstvz", "aeiou")


def drawn_names(words: Collection[str], seed: int) -> dict[str, str]:
    """For each word another one, all different, and none of them a word of this collection.

    It is as long, but of at least three letters, and longer where those run out; it begins with a capital letter where the
    word does. The same seed draws the same.
    """
    rng = random.Random(seed)
    names: dict[str, str] = {}
    taken = {word.lower() for word in words}
    for word in sorted(words):
        first = rng.randrange(2)
        name = "".join(rng.choice(_LETTERS[(first + place) % 2]) for place in range(max(len(word), 3)))
        while name in taken:
            name += rng.choice(_LETTERS[(first + len(name)) % 2])
        taken.add(name)
        names[word] = name.capitalize() if word[0].isupper() else name
    return names


def renamed(text: str, names: Mapping[str, str]) -> str:
    """The text with every word that has another name written as that."""
    return _WORD.sub(lambda found: names.get(found.group(), found.group()), text)


def words_in(text: str) -> list[str]:
    """What `renamed` takes for words."""
    return _WORD.findall(text)
