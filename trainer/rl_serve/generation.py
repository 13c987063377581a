"""From a request to the text of its answers: places, deadline, tokens to text, and an end of it all when the client goes.

All of it runs on one event loop; only the engine has a thread of its own.
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import itertools
import math
import secrets
import time
from collections.abc import AsyncIterator, Callable, Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import cast

import numpy as np
import torch

from rl_api.errors import ModelError
from rl_serve.admission import Admission
from rl_serve.answers import Delta, Mark, Usage
from rl_serve.detokenize import Piece, TextStream, TextToken
from rl_serve.engine_loop import EngineLoop, Swap, Update
from rl_serve.errors import TOO_LONG, ApiError
from rl_serve.requests import Limits, Request
from rl_trainer.model.tokenizer import Tokenizer
from rl_trainer.rollout.engines.base import Engine, FinishReason, GenerationRequest, SamplingParams

# OpenAI's own default; a chat goes on as long as there is room.
COMPLETION_TOKENS = 16
# Pieces that a replica hands on in a second, over all streams: each is an event for Ray Serve's proxy and costs more than
# the token in it. Streams share them, so with many each piece holds several tokens.
_PIECES_PER_SECOND = 1000.0
# Prompts of more characters (or token ids) take so long to encode that others would wait for it.
_LONG = 1 << 16
# A log-probability that JSON has no number for.
_LOWEST = -9999.0


@dataclass
class _Answer:
    """One answer that is being written."""

    text: TextStream
    done: bool = False
    sampled: int = 0
    cached: int | None = None
    # When its first token came.
    since: float | None = None
    # (number of the weights, first token that was sampled with them)
    began: list[tuple[int, int]] = field(default_factory=list)

    def note(self, versions: Sequence[int]) -> None:
        """Which weights the next tokens were sampled with."""
        for version in versions:
            if not self.began or self.began[-1][0] != version:
                self.began.append((version, self.sampled))
            self.sampled += 1


class Job:
    """One request under way; get one from `Generator.start`, and `close` it whatever happens."""

    def __init__(
        self,
        answers: list[_Answer],
        prompt_tokens: int,
        close: Callable[[], None],
        names: Mapping[int, str],
        asked: int,
        n: int,
        wrote: Callable[[float, bool], None],
    ) -> None:
        self._answers, self._n = answers, n
        self._prompt_tokens = prompt_tokens
        self._close, self._wrote = close, wrote
        self._names, self._asked = names, asked
        self._inbox: asyncio.Queue[Delta | ApiError] = asyncio.Queue()
        self.pace: Callable[[], float] = lambda: 0.0
        """Seconds between two pieces of one answer; its first piece and its end never wait."""
        self._held: dict[int, Piece] = {}
        self._due: dict[int, float] = {}

    async def deltas(self) -> AsyncIterator[Delta]:
        """The answers, piece by piece, until all have ended.

        Raises:
            ApiError: they cannot be ended: the deadline has passed, or the engine has failed.
        """
        left = len(self._answers)
        while left:
            found = await self._inbox.get()
            if isinstance(found, ApiError):
                raise found
            left -= found.finish_reason is not None
            yield found

    @property
    def usage(self) -> Usage:
        """Tokens so far."""
        # Answers to one prompt share it: what the first of them has found is what was there before the request.
        known = [answer.cached for answer in self._answers[:: self._n] if answer.cached is not None]
        return Usage(
            self._prompt_tokens,
            sum(answer.text.used for answer in self._answers),
            sum(known) if known else None,
        )

    @property
    def version(self) -> str:
        """The policy's version that the answers began with; before their first token the one that was asked."""
        began = [answer.began[0][0] for answer in self._answers if answer.began]
        return self._names[min(began, default=self._asked)]

    @property
    def versions(self) -> tuple[Mark, ...]:
        """Which version wrote what, so far."""
        return tuple(
            Mark(index, self._names[version], token)
            for index, answer in enumerate(self._answers)
            for version, token in answer.began
        )

    def close(self) -> None:
        """Give the places back, and let the engine forget what has not ended. A second time does nothing."""
        self._close()

    def fail(self, error: ApiError) -> None:
        """End it with `error`, for whoever reads `deltas`."""
        self._inbox.put_nowait(error)
        self._close()

    def take(self, number: int, update: Update, stop_ids: frozenset[int]) -> bool:
        """What the engine says about the answer `number`; True: its text has ended before its tokens have."""
        answer = self._answers[number]
        if answer.done:
            return False
        if any(math.isnan(logprob) for _, logprob in update.tokens):
            self.fail(
                ApiError("the policy's weights give probabilities that are no numbers", status=500, code=None)
            )
            return False
        now = time.monotonic()
        answer.since = now if answer.since is None else answer.since
        answer.note(update.versions)
        answer.cached = update.cached
        reason = update.finish_reason
        tokens = _text_tokens(update)
        # The token that ends a sequence is counted, but it is no text.
        last = tokens.pop() if reason == "stop" and tokens and tokens[-1].id in stop_ids else None
        piece = answer.text.add(tokens)
        early = answer.text.stopped and reason is None
        if answer.text.stopped:
            reason = "stop"
        elif reason is not None:
            rest = answer.text.finish()
            piece = Piece(piece.text + rest.text, piece.tokens + rest.tokens)
            reason = "stop" if answer.text.stopped else reason
            answer.text.used += last is not None
        answer.done = reason is not None
        if answer.done:
            self._wrote(now - answer.since, True)
        self._hand_on(number, piece, reason, now)
        return early

    def expire(self, error: ApiError) -> None:
        """End it, as its deadline has passed."""
        now = time.monotonic()
        for answer in self._answers:
            if answer.since is not None and not answer.done:
                self._wrote(now - answer.since, False)
        self.fail(error)

    def _hand_on(self, number: int, piece: Piece, reason: FinishReason | None, now: float) -> None:
        """What is new of an answer, together with what was held back, goes to whoever reads `deltas`, or is held back."""
        if held := self._held.pop(number, None):
            piece = Piece(held.text + piece.text, held.tokens + piece.tokens)
        if reason is None and not (piece.text or piece.tokens):
            return
        if reason is None and now < self._due.get(number, 0.0):
            self._held[number] = piece
            return
        self._due[number] = now + self.pace()
        self._inbox.put_nowait(Delta(number, piece.text, piece.tokens, reason))


def _text_tokens(update: Update) -> list[TextToken]:
    tops = update.top or ((),) * len(update.tokens)
    return [
        TextToken(
            token,
            max(logprob, _LOWEST),
            top=tuple((other, max(value, _LOWEST)) for other, value in top),
        )
        for (token, logprob), top in zip(update.tokens, tops, strict=True)
    ]


class Generator:
    """All requests of one replica; made and used on a running event loop.

    Args:
        engine: belongs to this from now on.
        tokenizer: of its model.
        limits: what a request may ask for; its `context` is at most the engine's.
        admission: the places.
        timeout: seconds from a request's arrival to the end of its answers.
        version: the policy's, for clients.

    Attributes:
        tokens: how many were sampled so far, for all requests.
    """

    def __init__(
        self,
        engine: Engine,
        tokenizer: Tokenizer,
        limits: Limits,
        admission: Admission,
        timeout: float,
        version: str,
    ) -> None:
        # By the number of the weights: each swap adds one. Tokens that are under way are still of earlier ones.
        self._names = {engine.version: version}
        self._serving = engine.version
        self.tokenizer, self.limits, self.admission, self.timeout = tokenizer, limits, admission, timeout
        self.tokens = 0
        self._vocab_size = engine.vocab_size
        self._events = asyncio.get_running_loop()
        self._jobs: dict[int, Job] = {}
        self._encoding = 0
        self._numbers = itertools.count()
        self._engine = EngineLoop(engine, self._delivered, self._failed)

    @property
    def failure(self) -> str:
        """Why nothing is generated any more, empty: all is well."""
        return self._engine.failure

    @property
    def version(self) -> str:
        """The policy's version that writes the next token."""
        return self._names[self._serving]

    @property
    def idle(self) -> bool:
        """Whether no request is under way."""
        return not self._jobs and not self._encoding

    async def swap(self, tensors: Mapping[str, torch.Tensor], version: str) -> None:
        """Go on with other weights (Hugging Face names), from the next token on; returns when they are in.

        Raises:
            ModelError: they do not fit; then all is as it was.
        """
        number = max(self._names) + 1
        said: asyncio.Future[str | None] = self._events.create_future()
        self._names[number] = version

        def done(problem: str | None) -> None:
            if problem is None:
                self._serving = number
            said.set_result(problem)

        self._engine.swap(Swap(tensors, number, lambda problem: self._soon(done, problem)))
        problem = await said
        if problem is not None:
            raise ModelError(problem)

    def start(self, request: Request) -> Job:
        """Begin to answer.

        Raises:
            ApiError: all places are taken, the prompt does not fit the model, or the engine has failed.
        """
        with self._admitted(request):
            return self._begin(request, self._encode(request))

    async def begin(self, request: Request) -> Job:
        """As `start`; long prompts are encoded beside the event loop."""
        if sum(map(len, request.prompts)) + sum(len(one["content"]) for one in request.messages) <= _LONG:
            return self.start(request)
        with self._admitted(request):
            self._encoding += 1
            try:
                prompts = await asyncio.to_thread(self._encode, request)
            finally:
                self._encoding -= 1
            return self._begin(request, prompts)

    @contextlib.contextmanager
    def _admitted(self, request: Request) -> Iterator[None]:
        """With places for it before its prompts are looked at, which are the job's where one begins."""
        if self.failure:
            raise ApiError(self.failure, status=500, code=None)
        self.admission.admit(request.sequences)
        try:
            yield
        except BaseException:
            self.admission.withdraw(request.sequences)
            raise

    def _begin(self, request: Request, prompts: Sequence[np.ndarray]) -> Job:
        params = [self._params(request, prompt) for prompt in prompts]
        number = next(self._numbers)
        base = secrets.randbits(63) if request.seed is None else request.seed
        sequences: list[GenerationRequest] = []
        for prompt, sampling in zip(prompts, params, strict=True):
            for _ in range(request.n):
                index = len(sequences)
                sequences.append(GenerationRequest((number, index), prompt, sampling, seed_of(base, index)))
        answers = [_Answer(TextStream(self.tokenizer.decode, request.stop)) for _ in sequences]
        ids = [sequence.id for sequence in sequences]
        close = self._closer(number, ids, answers)
        wrote = self.admission.wrote
        job = Job(answers, sum(map(len, prompts)), close, self._names, self._serving, request.n, wrote)
        self._jobs[number] = job
        job.pace = self._pace if request.stream else lambda: math.inf
        self._engine.submit(sequences)
        return job

    def close(self) -> None:
        """End the engine's thread."""
        self._engine.close()

    # -- prompts -------------------------------------------------------------------------------------------------

    def _encode(self, request: Request) -> list[np.ndarray]:
        try:
            if request.chat:
                text, own = self.tokenizer.render_chat(request.messages), self.tokenizer.has_chat_template
                return [self._checked("messages", self._ids("messages", text, special_tokens=not own))]
            return [
                self._checked("prompt", self._ids("prompt", one) if isinstance(one, str) else one)
                for one in request.prompts
            ]
        except ModelError as error:
            name = "messages" if request.chat else "prompt"
            # Its first words are the folder's path, which is the server's business.
            sentence = str(error).removeprefix(f"{self.tokenizer.where}: ")
            raise ApiError(f"{name}: {sentence}", param=name) from None

    def _ids(self, name: str, text: str, *, special_tokens: bool = True) -> Sequence[int]:
        """Token ids of a text, unless it is so long that they cannot fit, however few they are."""
        longest = self.tokenizer.longest
        if longest is not None and len(text) > self.limits.context * longest:
            raise ApiError(
                f"{name}: found {len(text)} characters, allowed: at most {self.limits.context - 1} tokens, so that one "
                f"more fits the context of {self.limits.context}",
                param=name,
                code=TOO_LONG,
            )
        return self.tokenizer.encode(text, special_tokens=special_tokens)

    def _checked(self, name: str, ids: Sequence[int]) -> np.ndarray:
        if not ids:
            raise ApiError(f"{name}: found no token, allowed: at least one", param=name)
        if max(ids) >= self._vocab_size:
            raise ApiError(
                f"{name}: found token id {max(ids)}, allowed: 0 to {self._vocab_size - 1}", param=name
            )
        if len(ids) >= self.limits.context:
            raise ApiError(
                f"{name}: found {len(ids)} tokens, allowed: at most {self.limits.context - 1}, so that one more fits the "
                f"context of {self.limits.context}",
                param=name,
                code=TOO_LONG,
            )
        return np.asarray(ids, np.int32)

    def _params(self, request: Request, prompt: np.ndarray) -> SamplingParams:
        room = self.limits.context - len(prompt)
        if request.max_tokens is not None and request.max_tokens > room:
            raise ApiError(
                f"max_tokens: found {request.max_tokens} with a prompt of {len(prompt)} tokens, allowed: at most {room}, as "
                f"the context holds {self.limits.context}",
                param="max_tokens",
                code=TOO_LONG,
            )
        default = self.limits.max_new_tokens
        if not request.chat:
            default = min(default, COMPLETION_TOKENS)
        return SamplingParams(
            max_new_tokens=min(room, request.max_tokens or default),
            temperature=request.temperature,
            top_p=request.top_p,
            top_k=request.top_k,
            stop_token_ids=self.tokenizer.stop_ids,
            top_logprobs=request.top_logprobs,
        )

    def _pace(self) -> float:
        return self.admission.taken / _PIECES_PER_SECOND

    # -- from the engine -----------------------------------------------------------------------------------------

    def _delivered(self, updates: list[Update]) -> None:
        self._soon(self._dispatch, updates)

    def _failed(self, sentence: str) -> None:
        self._soon(self._fail_all, sentence)

    def _soon(self, call: Callable[..., None], *arguments: object) -> None:
        if not self._events.is_closed():
            self._events.call_soon_threadsafe(call, *arguments)

    def _dispatch(self, updates: list[Update]) -> None:
        early: list[Hashable] = []
        for update in updates:
            self.tokens += len(update.tokens)
            number, index = cast(tuple[int, int], update.id)
            job = self._jobs.get(number)
            if job is not None and job.take(index, update, self.tokenizer.stop_ids):
                early.append(update.id)
        if early:
            self._engine.cancel(early)

    def _fail_all(self, sentence: str) -> None:
        for job in list(self._jobs.values()):
            job.fail(ApiError(sentence, status=500, code=None))

    def _closer(self, number: int, ids: list[Hashable], answers: list[_Answer]) -> Callable[[], None]:
        """What ends a job, once."""
        began = time.monotonic()

        def close() -> None:
            if self._jobs.pop(number, None) is None:
                return
            timer.cancel()
            self.admission.release(len(ids), time.monotonic() - began)
            left = [one for one, answer in zip(ids, answers, strict=True) if not answer.done]
            if left:
                self._engine.cancel(left)

        def expire() -> None:
            if (job := self._jobs.get(number)) is not None:
                job.expire(
                    ApiError(
                        f"the answer was not ready {self.timeout:g} seconds after the request (--timeout of this server)",
                        status=504,
                        code="deadline_exceeded",
                    )
                )

        timer = self._events.call_later(self.timeout, expire)
        return close


def seed_of(seed: int, index: int) -> int:
    """The seed of the answer `index` of a request, 64 bits; the first one has the request's own."""
    if not index:
        return seed
    return int.from_bytes(hashlib.blake2b(f"{seed}/{index}".encode(), digest_size=8).digest(), "big")
