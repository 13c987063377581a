"""Prompts that are too long for the model: which they are, and what is said before a run starts."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

import pytest

from rl_api.errors import ModelError, TaskError
from rl_trainer.model.chat import Chat
from rl_trainer.run.screen import Screen, context_of, screened
from rl_trainer.tasks import Prompt, Task


class Characters:
    """A token per character; `?` has none. A template writes four more."""

    class tokenizer:  # noqa: N801
        @staticmethod
        def decode(tokens: list[int]) -> str:
            return "".join(map(chr, tokens))

    def __init__(self) -> None:
        self.written = 0

    def prompt(self, content: Any) -> list[int]:
        self.written += 1
        text = content if isinstance(content, str) else "".join(one["content"] for one in content)
        if "?" in text:
            raise ModelError("no token for ?")
        return [ord(one) for one in f"<<{text}>>"]


@dataclass
class Prompts:
    """Stands for a task."""

    training: list[str] | None
    held: list[str]

    def all_training(self) -> Any:
        return None if self.training is None else (Prompt(-1, text, "", {}) for text in self.training)

    def heldout(self) -> list[Prompt]:
        return [Prompt(-1, text, "", {}) for text in self.held]


def look(training: list[str] | None, held: list[str], context: int | None = 20) -> tuple[list[str], str]:
    screen = Screen(cast(Chat, Characters()), context)
    found = screened(cast(Task, Prompts(training, held)), screen)
    return [prompt.text for prompt in found.heldout], found.sentence


def test_the_longest_that_fits_leaves_room_for_one_token():
    assert look(["a" * 15], ["b"]) == (["b"], "")
    assert look(["a", "a" * 16, "c" * 90], ["b", "d" * 17]) == (
        ["b"],
        "task.onLongPrompt: 2 of 3 prompts and 1 of 2 held-out prompts are left out, as they do not fit into the model's "
        f"context of 20 tokens with at least one new token ({'d' * 17!r} has 21)",
    )
    _, sentence = look(["a", "c" * 90], [])
    assert sentence.startswith("task.onLongPrompt: 1 of 2 prompts are left out, ")
    assert sentence.endswith(f"({'c' * 40 + '...'!r} has 94)")


def test_of_prompts_without_end_only_those_held_out_are_looked_at():
    assert look(None, ["b"]) == (["b"], "")
    assert look(None, ["b", "b" * 30])[1].startswith(
        "task.onLongPrompt: 1 of 2 held-out prompts are left out"
    )


@pytest.mark.parametrize(
    ("training", "held", "what"),
    [(["a" * 30], ["b"], "1 prompts"), (["a"], ["b" * 30] * 2, "2 held-out prompts")],
)
def test_where_none_fits_the_run_ends(training: list[str], held: list[str], what: str):
    with pytest.raises(
        TaskError, match=f"task.onLongPrompt: none of the {what} can be used, .* shorten them"
    ):
        look(training, held)


def test_what_is_not_known_is_let_through():
    assert look(["a" * 99], ["b" * 99], None) == (["b" * 99], "")
    assert look(["?" * 99], ["?" * 99]) == (["?" * 99], "")


def test_short_ones_are_not_written_and_chats_always_are():
    chat = Characters()
    screen = Screen(cast(Chat, chat), 1000)
    assert all(screen.fits(Prompt(-1, "a" * 400, "", {})) for _ in range(100))
    assert chat.written == 1
    assert screen.fits(Prompt(-1, "a", "", {}, ({"role": "user", "content": "a"},)))
    assert chat.written == 2


@pytest.mark.parametrize(
    ("config", "context"),
    [
        ({"max_position_embeddings": 512}, 512),
        ({"n_positions": 1024}, 1024),
        ({"text_config": {"max_position_embeddings": 99}}, 99),
        ({"max_position_embeddings": None}, None),
    ],
)
def test_the_context_of_a_model_folder(tmp_path: Path, config: dict[str, Any], context: int | None):
    (tmp_path / "config.json").write_text(json.dumps(config))
    assert context_of(tmp_path) == context
