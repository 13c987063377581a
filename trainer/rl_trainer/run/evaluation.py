"""Held-out answers: their score, and the examples that a report shows."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from rl_trainer.observe.examples import Example, read_examples, write_examples
from rl_trainer.tasks import Answer

EXAMPLES = 16


def exact_share(answers: Sequence[Answer]) -> float:
    """Share of answers that are exactly right."""
    return sum(answer.exact for answer in answers) / len(answers)


def keep_examples(folder: Path, answers: Sequence[Answer], *, first: bool) -> None:
    """Writes some of `answers`: of the first evaluation as `before`, of every later one as `after`."""
    answers = answers[:EXAMPLES]
    if first:
        examples = [
            Example(prompt=a.prompt, expected=a.expected, before=a.text, before_right=a.exact)
            for a in answers
        ]
    else:
        after = {a.prompt: a for a in answers}
        examples = [
            replace(one, after=after[one.prompt].text, after_right=after[one.prompt].exact)
            for one in read_examples(folder)
            if one.prompt in after
        ]
    write_examples(folder, examples)
