"""Answers to rows of many parts from one engine, whose slots are never empty while a part has rows that wait."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Hashable, Mapping, Sequence
from itertools import starmap
from typing import Any, cast

import numpy as np

from rl_api.errors import ActorDied, ModelError
from rl_generate.job import Options
from rl_generate.rows import Answer, Outcome, Question, RowError, question, seeds
from rl_serve.detokenize import TextStream, TextToken
from rl_serve.engine_loop import EngineLoop, Update
from rl_trainer.model.tokenizer import Tokenizer
from rl_trainer.rollout.engines.base import Engine, GenerationRequest, SamplingParams


class _Writing:
    """One answer that is being written: number `index` of the row at `place`. `stream`: looks for stop texts."""

    def __init__(self, place: int, index: int, stream: TextStream | None) -> None:
        self.place, self.index = place, index
        self._stream = stream
        self._tokens: list[int] = []
        self._text = ""
        self.ended = self.broken = False
        self.answer = Answer("", "length", 0)

    def take(self, update: Update, tokenizer: Tokenizer) -> bool:
        """What the engine says about it; True: its text has ended before its tokens have."""
        self.broken = self.broken or any(math.isnan(logprob) for _, logprob in update.tokens)
        reason, tokens = update.finish_reason, list(update.tokens)
        # The token that ends a sequence is counted, but it is no text.
        last = tokens.pop() if reason == "stop" and tokens and tokens[-1][0] in tokenizer.stop_ids else None
        if self._stream is None:
            self._tokens += [token for token, _ in tokens]
            if reason is not None:
                count = len(self._tokens) + (last is not None)
                self.answer, self.ended = Answer(tokenizer.decode(self._tokens), reason, count), True
            return False
        self._text += self._stream.add(starmap(TextToken, tokens)).text
        early = self._stream.stopped and reason is None
        if reason is not None:
            self._text += self._stream.finish().text
        self.ended = self._stream.stopped or reason is not None
        if self.ended:
            stopped = self._stream.stopped
            used = self._stream.used + (last is not None and not stopped)
            self.answer = Answer(self._text, "stop" if stopped else str(reason), used)
        return early


class _Part:
    """Rows that were asked together; `left`: answers of each row (by its place) that have not ended."""

    def __init__(self, done: asyncio.Future[None]) -> None:
        self.done = done
        self.writing: list[_Writing] = []
        self.left: dict[int, int] = {}
        self.rows = 0


class Generator:
    """All rows of one engine; made and used on a running event loop.

    Args:
        engine: belongs to this from now on.
        tokenizer: of its model.
        options: of the job.

    Attributes:
        tokens: how many were sampled so far.
        rows: of parts that are not done, how many are.
    """

    def __init__(self, engine: Engine, tokenizer: Tokenizer, options: Options) -> None:
        self._tokenizer, self._options = tokenizer, options
        engine.context = min(engine.context, options.max_context)
        self._context = engine.context
        self._vocab_size = engine.vocab_size
        self._events = asyncio.get_running_loop()
        self._parts: dict[int, _Part] = {}
        self._numbers = 0
        self.tokens = self.rows = 0
        # Stop texts are looked for after each token; without any, only what has ended is of interest.
        self._engine = EngineLoop(engine, self._delivered, self._failed, pieces=bool(options.stop))

    async def answer(
        self, rows: Sequence[Mapping[str, Any] | None], problems: Mapping[int, str]
    ) -> list[Outcome]:
        """What becomes of each row; where it stands in `problems`, that.

        Raises:
            ActorDied: the engine has failed.
        """
        if self._engine.failure:
            raise ActorDied(self._engine.failure)
        outcomes: list[Outcome | None] = [None] * len(rows)
        prompt_tokens = [0] * len(rows)
        requests: list[GenerationRequest] = []
        number, self._numbers = self._numbers, self._numbers + 1
        part = _Part(self._events.create_future())
        for place, row in enumerate(rows):
            try:
                if row is None:
                    raise RowError(problems[place])
                prompt = self._encode(question(row, self._options.columns))
            except RowError as error:
                outcomes[place] = Outcome(error=str(error))
                continue
            prompt_tokens[place], part.left[place] = len(prompt), self._options.n
            params = self._params(prompt)
            for index, seed in enumerate(seeds(self._options.seed, row, self._options.n)):
                requests.append(GenerationRequest((number, len(requests)), prompt, params, seed))
                part.writing.append(_Writing(place, index, self._stream()))
        if requests:
            self._parts[number] = part
            self._engine.submit(requests)
            try:
                await part.done
            finally:
                del self._parts[number]
                self.rows -= part.rows
        for one in part.writing:
            before = outcomes[one.place] or Outcome((), prompt_tokens[one.place])
            if one.broken:
                before = Outcome(error="the policy's weights give probabilities that are no numbers")
            elif not before.error:
                before = Outcome((*before.answers, one.answer), before.prompt_tokens)
            outcomes[one.place] = before
        return cast(list[Outcome], outcomes)

    def _stream(self) -> TextStream | None:
        return TextStream(self._tokenizer.decode, self._options.stop) if self._options.stop else None

    def close(self) -> None:
        """End the engine's thread."""
        self._engine.close()

    def _encode(self, asked: Question) -> np.ndarray:
        columns = self._options.columns
        name = columns.messages if asked.messages else columns.prompt
        try:
            if asked.messages:
                ids: Sequence[int] = self._tokenizer.encode_chat(asked.messages)
            else:
                assert asked.prompt is not None
                ids = self._tokenizer.encode(asked.prompt) if isinstance(asked.prompt, str) else asked.prompt
        except ModelError as error:
            raise RowError(f"{name}: {str(error).removeprefix(f'{self._tokenizer.where}: ')}") from None
        if not ids:
            raise RowError(f"{name}: found no token, allowed: at least one")
        if max(ids) >= self._vocab_size:
            raise RowError(f"{name}: found token id {max(ids)}, allowed: 0 to {self._vocab_size - 1}")
        if len(ids) >= self._context:
            raise RowError(
                f"{name}: found {len(ids)} tokens, allowed: at most {self._context - 1}, so that one more fits the context "
                f"of {self._context} (--max-context)"
            )
        return np.asarray(ids, np.int32)

    def _params(self, prompt: np.ndarray) -> SamplingParams:
        options = self._options
        return SamplingParams(
            max_new_tokens=min(options.max_new_tokens, self._context - len(prompt)),
            temperature=options.temperature,
            top_p=options.top_p,
            top_k=options.top_k,
            stop_token_ids=self._tokenizer.stop_ids,
        )

    # -- from the engine -----------------------------------------------------------------------------------------

    def _delivered(self, updates: list[Update]) -> None:
        if not self._events.is_closed():
            self._events.call_soon_threadsafe(self._take, updates)

    def _take(self, updates: list[Update]) -> None:
        early: list[Hashable] = []
        for update in updates:
            self.tokens += len(update.tokens)
            number, index = cast(tuple[int, int], update.id)
            part = self._parts.get(number)
            if part is None or (one := part.writing[index]).ended:
                continue
            if one.take(update, self._tokenizer):
                early.append(update.id)
            if one.ended:
                self._count(part, one.place)
        if early:
            self._engine.cancel(early)

    def _count(self, part: _Part, place: int) -> None:
        part.left[place] -= 1
        if not part.left[place]:
            del part.left[place]
            part.rows, self.rows = part.rows + 1, self.rows + 1
            if not part.left and not part.done.done():
                part.done.set_result(None)

    def _failed(self, sentence: str) -> None:
        if not self._events.is_closed():
            self._events.call_soon_threadsafe(self._fail, sentence)

    def _fail(self, sentence: str) -> None:
        for part in list(self._parts.values()):
            if not part.done.done():
                part.done.set_exception(ActorDied(sentence))
