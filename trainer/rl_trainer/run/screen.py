"""Which prompts fit into the model's context, said before a run starts. The samplers have the last word on each."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from rl_api.errors import RLTrainError, TaskError
from rl_trainer.model.chat import Chat
from rl_trainer.tasks import Prompt, Task

# Names that families of models have for the most tokens of a sequence.
_CONTEXT = ("max_position_embeddings", "n_positions")


def context_of(model: Path) -> int | None:
    """Most tokens of a sequence, prompt included, as `config.json` of a model folder has it; None: it does not say."""
    raw: Any = json.loads((model / "config.json").read_text(encoding="utf-8"))
    for part in (raw, raw.get("text_config")):
        for name in _CONTEXT:
            if isinstance(part, Mapping) and isinstance(part.get(name), int):
                return int(part[name])
    return None


@dataclass(frozen=True)
class Screen:
    """Lets prompts through that leave room for a token.

    Attributes:
        chat: how prompts are written for the model.
        context: most tokens of a sequence; None: everything is let through.
    """

    chat: Chat
    context: int | None

    def fits(self, prompt: Prompt) -> bool:
        """Whether there is room behind it. One that cannot be written is let through: who samples it says why."""
        if self.context is None:
            return True
        # A token is a byte at least, so most need not be written: half is left for what normalising text may add.
        if (
            len(prompt.text.encode(errors="replace")) + self._written <= self.context // 2
            and not prompt.messages
        ):
            return True
        try:
            return self.tokens(prompt) < self.context
        except RLTrainError:
            return True

    def tokens(self, prompt: Prompt) -> int:
        """How many tokens it has. ModelError: it cannot be written."""
        return len(self.chat.prompt(prompt.content))

    @cached_property
    def _written(self) -> int:
        """About as many bytes as a template writes around a prompt."""
        return len(self.chat.tokenizer.decode(self.chat.prompt("1")).encode())


@dataclass(frozen=True)
class Screened:
    """Held-out prompts that fit, and a sentence on what is left out; empty: nothing is."""

    heldout: list[Prompt]
    sentence: str = ""


def screened(task: Task, screen: Screen) -> Screened:
    """Looks at all prompts of a file or data set, and at those held out.

    Raises TaskError when no prompt fits that is trained on, or held out.
    """
    held = task.heldout()
    kept = [prompt for prompt in held if screen.fits(prompt)]
    training, long = 0, [prompt for prompt in held if not screen.fits(prompt)][:1]
    left = 0
    for prompt in task.all_training() or ():
        training += 1
        if not screen.fits(prompt):
            left += 1
            long = long or [prompt]
    if not long:
        return Screened(held)
    counts = [(left, training, "prompts"), (len(held) - len(kept), len(held), "held-out prompts")]
    text = long[0].text if len(long[0].text) <= 40 else f"{long[0].text[:40]}..."
    why = (
        f"not fit into the model's context of {screen.context:,} tokens with at least one new token ({text!r} has "
        f"{screen.tokens(long[0]):,})"
    )
    for out, total, what in counts:
        if out and out == total:
            raise TaskError(
                f"task.onLongPrompt: none of the {total:,} {what} can be used, as they do {why}; shorten them (task.file, "
                "task.dataset, task.promptTemplate or task.systemPrompt) or take a model with a longer context"
            )
    shown = " and ".join(f"{out:,} of {total:,} {what}" for out, total, what in counts if out)
    return Screened(kept, f"task.onLongPrompt: {shown} are left out, as they do {why}")
