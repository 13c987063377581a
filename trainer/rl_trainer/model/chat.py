"""A dialogue as token ids: its prompt, and what is said to the model later on. Ids are only ever appended."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

from rl_api.errors import InvalidConfig, ModelError
from rl_api.task import TaskSpec
from rl_trainer.model.tokenizer import Tokenizer

# Stands for what the model has said: the template's text behind it is what ends a turn and begins the next.
_SAID = "rltrain-turn"
_BEFORE = ({"role": "user", "content": "?"}, {"role": "assistant", "content": _SAID})
# Arguments of the library's `apply_chat_template` that are ours to give.
_OURS = {"self", "conversation", "messages", "tools", "chat_template", "tokenize"}
_OURS |= {"add_generation_prompt", "continue_final_message"}


@dataclass(frozen=True)
class Chat:
    """How a run's dialogues are written for its model.

    Attributes:
        tokenizer: the model's.
        system_prompt: the message before every prompt, None for none.
        tools: JSON schemas that the template shows to the model.
        template_kwargs: more arguments of the template, such as `enable_thinking`.
        observation_role: the role of what an environment says.
    """

    tokenizer: Tokenizer
    system_prompt: str | None = None
    tools: Sequence[Mapping[str, Any]] = ()
    template_kwargs: Mapping[str, Any] = field(default_factory=dict)
    observation_role: str = "user"

    @classmethod
    def of(cls, tokenizer: Tokenizer, task: TaskSpec) -> Chat:
        """The one that a run asks for.

        Raises:
            InvalidConfig: it asks for something of the chat template, and the model has none.
            ModelError: the template refuses the role of observations, or leaves out earlier turns.
        """
        chat = cls(
            tokenizer, task.system_prompt, task.tools, task.chat_template_kwargs, task.observation_role
        )
        for path, value in (("tools", task.tools), ("chatTemplateKwargs", task.chat_template_kwargs)):
            if value and not tokenizer.has_chat_template:
                raise InvalidConfig(
                    f"spec.task.{path}: the model has no chat template that could use it; leave it out, or take "
                    "a model that was trained on chats (spec.model.source)"
                )
        if ours := sorted(_OURS.intersection(task.chat_template_kwargs)):
            raise InvalidConfig(
                f"spec.task.chatTemplateKwargs: found {ours[0]}, which the trainer gives the template itself"
                f"{' (spec.task.tools)' if ours[0] == 'tools' else ''}; leave it out"
            )
        if task.dialogues:
            chat.observation("?", chat.end_of_turn)
        return chat

    def prompt(self, content: str | Sequence[Mapping[str, str]]) -> list[int]:
        """Plain text as it is where there is neither template nor system prompt; else messages, through the template."""
        if isinstance(content, str):
            if self.system_prompt is None and not self.tokenizer.has_chat_template:
                return self.tokenizer.encode(content)
            content = [{"role": "user", "content": content}]
        messages = list(content)
        if self.system_prompt is not None:
            messages.insert(0, {"role": "system", "content": self.system_prompt})
        return self.tokenizer.encode_chat(messages, tools=self.tools, **self.template_kwargs)

    def observation(self, text: str, last: int) -> list[int]:
        """What follows a turn of the model that ended with token `last`: an environment's words, and the next turn's begin.

        A template writes them as a message of their own; without one they are the text alone. Never with the
        tokens that begin a text.

        Raises:
            ModelError: the template refuses a message of this role, or there is no token for a character.
        """
        if not self.tokenizer.has_chat_template:
            return self.tokenizer.encode(text, special_tokens=False)
        message = {"role": self.observation_role, "content": text}
        ids = self._behind_a_turn([*_BEFORE, message], add_generation_prompt=True)
        # The model has written the end of its turn itself, or, with another stop token, has not.
        written = self._end.index(last) + 1 if last in self._end else 0
        return ids[written:] if ids[:written] == self._end[:written] else ids

    @cached_property
    def end_of_turn(self) -> int:
        """The token that ends a turn of the model: the template's, where that is a stop token."""
        stop_ids = self.tokenizer.stop_ids
        return next((token for token in self._end if token in stop_ids), min(stop_ids))

    @cached_property
    def _end(self) -> list[int]:
        """What the template writes behind a turn of the model."""
        if not self.tokenizer.has_chat_template:
            return []
        return self._behind_a_turn(_BEFORE, add_generation_prompt=False)

    def _behind_a_turn(
        self, messages: Sequence[Mapping[str, str]], *, add_generation_prompt: bool
    ) -> list[int]:
        text = self.tokenizer.render_chat(
            messages, add_generation_prompt=add_generation_prompt, **self.template_kwargs
        )
        _, said, behind = text.partition(_SAID)
        if not said:
            raise ModelError(
                "the model's chat template leaves out what the model has said before, so what follows it cannot be told; "
                "take a template that writes whole dialogues"
            )
        return self.tokenizer.encode(behind, special_tokens=False)
