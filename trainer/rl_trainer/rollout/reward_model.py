"""A model that scores completions: a classifier with one output, or a language model that is asked for its judgement."""

from __future__ import annotations

import itertools
import math
import secrets
import string
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Final, cast

import torch

from rl_api.errors import ModelError, RLTrainError
from rl_api.task import RewardModelSpec
from rl_trainer.error_text import first_line
from rl_trainer.model.tokenizer import Tokenizer, load_tokenizer
from rl_trainer.tasks.scoring import Completion

QUESTION: Final = """\
Question:
{prompt}

Answer:
{completion}

Is the answer right? Say Yes or No.
"""
"""What a judge is asked where `template` is null."""

ANSWERS: Final = ("Yes", "No")
"""What it may answer where `answers` is empty."""


class RewardModel:
    """The model of `folder` in fp32: deterministic on CPU cores, and a value does not depend on what else is scored.

    Args:
        folder: a Hugging Face folder; no code of it is run.
        spec: `task.rewardModel`.
        device: where it computes, `cpu` or `cuda`.

    Raises:
        ModelError: it cannot be opened, is no model of this kind, or an answer is not one token of it.
        RLTrainError: its GPU cannot be used, or has no room for it now; another attempt may have another GPU.
    """

    def __init__(self, folder: Path, spec: RewardModelSpec, device: str = "cpu") -> None:
        self._spec, self._device = spec, device
        self._tokenizer = load_tokenizer(folder)
        self._model = _opened(folder, spec.kind, device)
        config = self._model.config
        self._context = int(getattr(config.get_text_config(), "max_position_embeddings", None) or 1 << 30)
        # Classifiers of causal families read the last token that is not this one. Without it they take one text at a time.
        self._pad: int | None = config.get_text_config().pad_token_id
        self._answers: list[int] = []
        if spec.kind == "classifier" and config.num_labels != 1:
            raise ModelError(
                f"task.rewardModel: the model of {folder} has {config.num_labels} outputs, allowed: one, the reward"
            )
        if spec.kind == "judge":
            self._pad = 0 if self._pad is None else self._pad
            self._answers = [_token(self._tokenizer, text) for text in spec.answers or ANSWERS]

    def passes(self, completions: Sequence[Completion]) -> Iterator[dict[int, float | str]]:
        """The value of each completion, by its place, as it is found: first why some have none (the text is too long), then
        what each forward pass gives, which is no value where it is no finite number.

        Raises RLTrainError: its GPU has no room for a pass.
        """
        found: dict[int, float | str] = {}
        rows: list[tuple[int, list[int]]] = []
        for place, completion in enumerate(completions):
            try:
                tokens = self.tokens(completion)
            except ModelError as error:
                found[place] = f"cannot read the completion ({error})"
                continue
            if 0 < len(tokens) <= self._context:
                rows.append((place, tokens))
            else:
                found[place] = f"is given {len(tokens)} tokens, allowed: 1 to {self._context}"
        yield found
        rows.sort(key=lambda row: len(row[1]))  # rows of one pass have much the same length
        size = 1 if self._pad is None else self._spec.batch_size
        for begin in range(0, len(rows), size):
            batch = rows[begin : begin + size]
            try:
                logits = self._logits([tokens for _, tokens in batch])
            except torch.OutOfMemoryError:
                longest = len(batch[-1][1])
                raise RLTrainError(
                    f"task.rewardModel: its GPU has no room for a pass of {len(batch)} texts of up to {longest} tokens; "
                    "lower task.rewardModel.batchSize"
                ) from None
            yield {place: self._value(logit) for (place, _), logit in zip(batch, logits, strict=True)}

    def tokens(self, completion: Completion) -> list[int]:
        """What the model reads of it; what it holds, the prompt and the answer, is text there and ends no turn of a chat.

        Raises ModelError: the tokenizer or the chat template cannot take it.
        """
        template, chats = self._spec.template, self._tokenizer.has_chat_template
        if self._spec.kind == "judge":
            template = template or QUESTION
        if template is not None:
            text = _Filled(self._tokenizer).filled(template, completion)
            if self._spec.kind == "judge" and chats:
                return self._tokenizer.encode_chat([{"role": "user", "content": text}])
            return self._tokenizer.encode(text)
        quoted = self._tokenizer.quoted
        if not chats:
            return self._tokenizer.encode(quoted(completion.text + completion.completion))
        asked = completion.messages or ({"role": "user", "content": completion.text},)
        said = {"role": "assistant", "content": completion.completion}
        messages = [{**one, "content": quoted(one["content"])} for one in (*asked, said)]
        return self._tokenizer.encode_chat(messages, add_generation_prompt=False)

    @torch.inference_mode()
    def _logits(self, rows: Sequence[Sequence[int]]) -> list[float]:
        """One number per row of token ids: padding stands on the right, where no token before it sees it."""
        longest = max(map(len, rows))
        fill = self._pad or 0
        ids = torch.tensor([[*row, *[fill] * (longest - len(row))] for row in rows], device=self._device)
        mask = torch.tensor(
            [[1] * len(row) + [0] * (longest - len(row)) for row in rows], device=self._device
        )
        if self._spec.kind == "classifier":
            logits = self._model(input_ids=ids, attention_mask=mask).logits
            return cast(list[float], logits.float().squeeze(-1).tolist())
        # The vocabulary is large: its logits are made only at places where some row ends.
        ends, of_row = torch.unique(mask.sum(1) - 1, return_inverse=True)
        logits = self._model(input_ids=ids, attention_mask=mask, logits_to_keep=ends).logits
        last = logits[torch.arange(len(rows), device=self._device), of_row].float()
        right, wrong = self._answers
        return cast(list[float], (last[:, right] - last[:, wrong]).tolist())

    def _value(self, logit: float) -> float | str:
        if not math.isfinite(logit):
            return f"gives {logit}, allowed: a finite number"
        if self._spec.value == "logit":
            return logit
        return 0.5 * (1.0 + math.tanh(0.5 * logit))  # the logistic function, which does not overflow so


class _Filled(string.Formatter):
    """Fills a template in, such that what is put into it ends no turn of the model's chat and begins none."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer, self._edge = tokenizer, secrets.token_hex(16)

    def format_field(self, value: Any, format_spec: str) -> Any:
        """The value between two edges."""
        return f"{self._edge}{super().format_field(value, format_spec)}{self._edge}"

    def filled(self, template: str, completion: Completion) -> str:
        """For the tokenizer, see `Tokenizer.quoted`."""
        parts = self.format(
            template, prompt=completion.text, completion=completion.completion, answer=completion.answer
        ).split(self._edge)
        ends = list(itertools.accumulate(map(len, parts)))
        # Every second one was put in.
        return self._tokenizer.quoted("".join(parts), list(zip(ends[::2], ends[1::2], strict=False)))


def _opened(folder: Path, kind: str, device: str) -> Any:
    import transformers

    transformers.utils.logging.disable_progress_bar()  # type: ignore[no-untyped-call]
    transformers.utils.logging.set_verbosity_error()  # type: ignore[no-untyped-call]
    opener: Any = transformers.AutoModelForCausalLM
    if kind == "classifier":
        opener = transformers.AutoModelForSequenceClassification
    if device == "cuda":
        try:
            torch.zeros(1, device=device)
        except Exception as error:  # without a driver, a build for GPUs, or a device that works
            raise RLTrainError(f"task.rewardModel: its GPU cannot be used ({first_line(error)})") from None
    try:
        model, told = opener.from_pretrained(
            str(folder),
            dtype=torch.float32,
            trust_remote_code=False,
            use_safetensors=True,
            output_loading_info=True,
            device_map={"": device},  # tensor by tensor: main memory holds no copy of what goes to a GPU
        )
    except torch.OutOfMemoryError:
        raise RLTrainError(f"task.rewardModel: its GPU has no room for the model of {folder}") from None
    except Exception as error:  # every family raises its own kinds
        why = first_line(error)
        raise ModelError(f"task.rewardModel: no {kind} can be opened in {folder} ({why})") from None
    if missing := sorted(told["missing_keys"]):
        raise ModelError(
            f"task.rewardModel: {folder} holds no {missing[0]}, so it is no {kind}; see task.rewardModel.kind"
        )
    model.config.get_text_config().use_cache = False  # nothing is decoded that would need keys and values
    return model.eval()


def _token(tokenizer: Tokenizer, text: str) -> int:
    ids = tokenizer.encode(text, special_tokens=False)
    if len(ids) != 1:
        raise ModelError(
            f"task.rewardModel.answers: {text!r} is {len(ids)} tokens of the judge, allowed are texts of one token"
        )
    return ids[0]
