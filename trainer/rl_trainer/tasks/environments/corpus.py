"""The documents that a search looks in: JSON objects, one per line, with their facts, of which questions are made."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property
from pathlib import Path
from typing import Any, Final, NamedTuple

from rl_api.errors import TaskError
from rl_trainer.tasks.environments.names import words_in
from rl_trainer.tasks.environments.retrieval import BM25, passages_of
from rl_trainer.tasks.rows import Row
from rl_trainer.tasks.sources import read_file

ALMANAC: Final = Path(__file__).with_name("almanac.jsonl")
"""The corpus that comes with rltrain: 50 documents on towns, rivers and rulers that do not exist."""

_FIELD: Final = "task.args.corpus"


class Fact(NamedTuple):
    """`relation` of the document `title` is `value`: the food of Zanu is eggs."""

    title: str
    relation: str
    value: str


class Corpus:
    """Documents, their passages by BM25, and the questions that their facts answer.

    Args:
        file: path or s3:// address of documents {"text", and perhaps "title", "facts": {relation: value}}; None: `ALMANAC`.
        search: folder in which a relative path is looked for first.
        passage_words: a longer text is cut into passages of so many words.

    Raises TaskError: the file cannot be read, or a document is broken; the sentence says where.
    """

    def __init__(self, file: str | None, search: Path | None, passage_words: int) -> None:
        rows = read_file(str(ALMANAC) if file is None else file, search, _FIELD).rows
        self.name = file or ALMANAC.name
        self._passages: list[str] = []
        indexed: list[str] = []
        self._facts: dict[str, dict[str, str]] = {}
        for row in rows:
            title = _text(row, "title") if "title" in row.fields else ""
            for passage in passages_of(_text(row, "text"), passage_words):
                self._passages.append(f"{title}: {passage}" if title else passage)
                # A title counts twice, so that what is about a thing comes before what mentions it.
                indexed.append(f"{title} {self._passages[-1]}")
            self._add_facts(row, title)
        self._index = BM25(indexed)
        self._chains: dict[int, list[tuple[Fact, ...]]] = {}

    def look_up(self, words: str, most: int) -> list[str]:
        """The passages that match best, best first; none where no word is in the corpus."""
        return [self._passages[place] for place, _ in self._index.best(words, most)]

    def chains(self, hops: int) -> Sequence[tuple[Fact, ...]]:
        """All chains of so many facts in which each one's value is the title of the next; in the order of the file."""
        if hops not in self._chains:
            found: list[tuple[Fact, ...]] = [(fact,) for title in self._facts for fact in self._of(title)]
            for _ in range(hops - 1):
                found = [(*chain, fact) for chain in found for fact in self._of(chain[-1].value)]
            self._chains[hops] = found
        return self._chains[hops]

    @cached_property
    def names(self) -> frozenset[str]:
        """The words of which titles with facts and the facts' values consist; no relation is among them."""
        facts = [fact for (fact,) in self.chains(1)]
        named = {word for fact in facts for text in (fact.title, fact.value) for word in words_in(text)}
        return frozenset(named - {word for fact in facts for word in words_in(fact.relation)})

    def _of(self, title: str) -> list[Fact]:
        return [Fact(title, relation, value) for relation, value in self._facts.get(title, {}).items()]

    def _add_facts(self, row: Row, title: str) -> None:
        facts = row.fields.get("facts") or {}
        if not isinstance(facts, dict) or not all(
            isinstance(value, str) and value for value in facts.values()
        ):
            raise TaskError(
                f"{row.where}: found facts {facts!r:.60}, allowed: an object of texts, relation: value"
            )
        if facts and not title:
            raise TaskError(f"{row.where}: field title is missing, required with facts: questions ask for it")
        known = self._facts.setdefault(title, {})
        for relation, value in facts.items():
            if known.setdefault(relation, value) != value:
                raise TaskError(
                    f"{row.where}: found {relation} of {title}: {value!r}, an earlier document says {known[relation]!r}; "
                    "allowed: one value, as a question has one answer"
                )


def _text(row: Row, name: str) -> str:
    value: Any = row.fields.get(name)
    if not isinstance(value, str) or not value.strip():
        raise TaskError(f"{row.where}: found {name} {value!r:.60}, allowed: text that is not empty")
    return value.strip()
