"""Questions that are answered by looking things up: a search tool over a corpus, our own or the user's.

    question     food of Zanu?           (args: corpus, hops)
    model        search(Zanu)            a call: words between the brackets
    tool         Zanu: river Gliv, ...   the passage that matches best (BM25), or `nothing found`, on a line of its own
    model        eggs                    a turn without a call is the answer, and ends the dialogue

With two hops (`fish of river of Zanu?`) the first passage has the name that is to be looked up next. A small corpus is soon
known by heart; with `rename`, things have other names in every question, and only looking them up helps.
"""

from __future__ import annotations

import random
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from rl_api.errors import TaskError
from rl_trainer.tasks.environments.base import answered_by
from rl_trainer.tasks.environments.corpus import Corpus
from rl_trainer.tasks.environments.names import drawn_names, renamed, words_in
from rl_trainer.tasks.types import StepResult

_CALL: Final = re.compile(r"search\(([^()]*)\)")
_BRACKET: Final = re.compile(r"[()]")
_DEFAULTS: Final[dict[str, Any]] = {
    "corpus": None,
    "hops": 1,
    "rename": False,
    "results": 1,
    "passage_words": 100,
}
_MOST: Final = {"hops": 3, "results": 20, "passage_words": 10_000}


class Searches:
    """Makes the dialogues; as a class of an environment would. `search`: folder looked in first for a corpus.

    `task.args`: `corpus` (a file of documents, see `Corpus`; without: the almanac), `hops` (1): look-ups that a question
    needs; `rename` (false); `results` (1): passages of an answer; `passage_words` (100): where longer documents are cut.
    """

    def __init__(self, search: Path | None) -> None:
        self._search = search
        self._read: dict[tuple[str | None, int], Corpus] = {}

    def __call__(self, item: Mapping[str, Any], args: Mapping[str, Any]) -> Search:
        """The dialogue about one item."""
        options = _options(args)
        corpus = self._corpus(options)
        return Search(item, corpus, _names(corpus, item, options), options["results"])

    def generate(self, rng: random.Random, args: Mapping[str, Any]) -> dict[str, Any]:
        """{"question", "answer", "searches": what is to be looked up, in order}. TaskError: wrong arguments or corpus."""
        options = _options(args)
        corpus = self._corpus(options)
        chains = corpus.chains(options["hops"])
        if not chains:
            needed = "facts" if options["hops"] == 1 else f"chains of {options['hops']} facts"
            raise TaskError(
                f"task.args.corpus: documents of {corpus.name} have no {needed} to ask for; let them have some, or set "
                "task.file to questions of yours"
            )
        chain = rng.choice(chains)
        asked = " of ".join(fact.relation for fact in reversed(chain))
        item: dict[str, Any] = {"names": rng.getrandbits(31)} if options["rename"] else {}
        names = _names(corpus, item, options)
        return item | {
            "question": renamed(f"{asked} of {chain[0].title}?", names),
            "answer": renamed(chain[-1].value, names),
            "searches": [renamed(fact.title, names) for fact in chain],
        }

    def solution(self, item: Mapping[str, Any], args: Mapping[str, Any]) -> list[str]:
        """Look up one after the other, then answer. TaskError: the item does not say what."""
        searches, answer = item.get("searches"), item.get("answer")
        if (
            not isinstance(searches, list)
            or not all(isinstance(one, str) for one in searches)
            or answer is None
        ):
            raise TaskError(
                f"warmStart: item {dict(item)!r:.80} lacks searches (a list of texts, what to look up) or an answer; add "
                "them, or leave warmStart out"
            )
        return [*(f"search({_BRACKET.sub(' ', words)})" for words in searches), str(answer)]

    def _corpus(self, options: Mapping[str, Any]) -> Corpus:
        key = (options["corpus"], options["passage_words"])
        if key not in self._read:
            self._read[key] = Corpus(key[0], self._search, key[1])
        return self._read[key]


class Search:
    """One dialogue; see the module.

    Args:
        item: {"question"}.
        corpus: where it looks things up.
        names: of things in this dialogue, by their words in the corpus.
        results: most passages of an answer.
    """

    def __init__(
        self, item: Mapping[str, Any], corpus: Corpus, names: Mapping[str, str], results: int
    ) -> None:
        if not isinstance(item.get("question"), str):
            raise ValueError(f"found question {item.get('question')!r:.60}, allowed: text")
        self._question, self._corpus, self._results = str(item["question"]), corpus, results
        self._names = names
        self._own = {name.lower(): word for word, name in names.items()}

    def reset(self) -> str:
        """The question."""
        return self._question

    def step(self, completion: str) -> StepResult:
        """Carries the first call in the turn out; a turn without one ends the dialogue."""
        return answered_by(self._found, _CALL, completion)

    def _found(self, words: str) -> list[str]:
        found = self._corpus.look_up(self._meant(words), self._results)
        return [renamed(passage, self._names) for passage in found or ["nothing found"]]

    def _meant(self, words: str) -> str:
        """The words as they are in the corpus. What has another name cannot be found by its own one."""
        if not self._names:
            return words
        hidden = {word.lower() for word in self._names}
        return " ".join(self._own.get(word, word) for word in words_in(words.lower()) if word not in hidden)


def _names(corpus: Corpus, item: Mapping[str, Any], options: Mapping[str, Any]) -> dict[str, str]:
    """The names that things have in this dialogue, by their words in the corpus."""
    if not options["rename"]:
        return {}
    if type(item.get("names")) is not int:
        raise ValueError(
            "found task.args.rename true, allowed for questions made of facts alone: one of task.file has its names"
        )
    return drawn_names(corpus.names, item["names"])


def _options(args: Mapping[str, Any]) -> dict[str, Any]:
    options = {**_DEFAULTS, **args}
    for name, value in options.items():
        if name not in _DEFAULTS:
            raise TaskError(f"task.args.{name}: search has no such argument; it has {', '.join(_DEFAULTS)}")
        if name == "rename":
            if not isinstance(value, bool):
                raise TaskError(f"task.args.rename: found {value!r:.60}, allowed: true or false")
        elif name == "corpus":
            if value is not None and (not isinstance(value, str) or not value):
                raise TaskError(
                    f"task.args.corpus: found {value!r:.60}, allowed: path or s3:// address of a file"
                )
        elif type(value) is not int or not 1 <= value <= _MOST[name]:
            raise TaskError(
                f"task.args.{name}: found {value!r:.60}, allowed: a whole number from 1 to {_MOST[name]}"
            )
    return options
