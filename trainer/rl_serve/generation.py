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
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import cast

import numpy as np
import torch

from rl_api.errors import ModelError
from rl_serve.admission import Admission
from rl_serve.detokenize import TextStream
from rl_serve.engine_loop import EngineLoop, Swap, Update
from rl_serve.errors import TOO_LONG, ApiError
from rl_serve.job import Answer, Job
from rl_serve.prefill import Handover, Prefill
from rl_serve.requests import Limits, Request
from rl_trainer.model.tokenizer import Tokenizer
from rl_trainer.rollout.engines.base import Engine, GenerationRequest, Prefilled, SamplingParams

# OpenAI's own default; a chat goes on as long as there is room.
COMPLETION_TOKENS = 16
# Pieces that a replica hands on in a second, over all streams: each is an event for Ray Serve's proxy and costs more than
# the token in it. Streams share them, so with many each piece holds several tokens.
_PIECES_PER_SECOND = 500.0
# Prompts of more characters (or token ids) take so long to encode that others would wait for it.
_LONG = 1 << 16
_ENCODERS = ThreadPoolExecutor(2, "encode")


class Generator:
    """All requests of one replica; made and used on a running event loop.

    Args:
        engine: belongs to this from now on.
        tokenizer: of its model.
        limits: what a request may ask for; its `context` is at most the engine's.
        admission: the places.
        timeout: seconds from a request's arrival to the end of its answers.
        version: the policy's, for clients.
        prefill: who computes prompts for it; None: nobody else.

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
        prefill: Prefill | None = None,
    ) -> None:
        self._prefill = prefill
        self._asking: dict[int, asyncio.Task[None]] = {}
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
                # Not on the threads that load policies: who asks and goes, again and again, would keep those waiting.
                prompts = await self._events.run_in_executor(_ENCODERS, self._encode, request)
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
        job = self._job(number, sequences, request.n, request.stop)
        job.pace = self._pace if request.stream else lambda: math.inf
        others = [self._prefill is not None and self._prefill.wants(one, request.n) for one in prompts]
        if any(others):
            self._asking[number] = asyncio.create_task(self._prefilled(number, sequences, others))
        else:
            self._engine.submit(sequences)
        return job

    async def hand_over(self, prompt: Sequence[int]) -> Handover:
        """Compute a prompt for another copy, which writes the answer."""
        try:
            if self.failure:
                raise ApiError(self.failure, status=500, code=None)
            tokens = self._checked("prompt", prompt)
            self.admission.admit(1)
        except ApiError as error:
            return Handover(refusal=error.message)
        number, sampling = next(self._numbers), SamplingParams(1, temperature=0.0)
        sequence = GenerationRequest((number, 0), tokens, sampling, hand_over=True)
        job = self._job(number, [sequence])
        self._engine.submit([sequence])
        try:
            async for _ in job.deltas():
                pass
            return Handover(job.version, job.place, job.usage.cached or 0)
        except ApiError as error:
            return Handover(refusal=error.message)
        finally:
            job.close()

    def _job(
        self, number: int, sequences: list[GenerationRequest], n: int = 1, stop: Sequence[str] = ()
    ) -> Job:
        """A job of places that were admitted."""
        answers = [Answer(TextStream(self.tokenizer.decode, stop)) for _ in sequences]
        close = self._closer(number, [sequence.id for sequence in sequences], answers)
        tokens = sum(len(sequence.prompt) for sequence in sequences[::n])
        job = Job(answers, tokens, close, self._names, self._serving, n, self.admission.wrote)
        self._jobs[number] = job
        return job

    async def _prefilled(
        self, number: int, sequences: list[GenerationRequest], others: Sequence[bool]
    ) -> None:
        """Let another copy compute prompts, those that are marked in `others`, and then begin to answer."""
        assert self._prefill is not None
        serving, version, ready = self._serving, self.version, list(sequences)
        asked = [index for index, other in enumerate(others) if other]
        said = await asyncio.gather(*(self._prefill(sequences[at].prompt.tolist(), version) for at in asked))
        for index, found in zip(asked, said, strict=True):
            if found is not None:
                # The engine takes them only where it has still the weights of `serving`.
                prefilled = Prefilled(serving, found.until, found.place, found.cached)
                ready[index] = replace(ready[index], prefilled=prefilled)
        if self._asking.pop(number, None) is not None:  # else its client has gone
            self._engine.submit(ready)

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

    def _closer(self, number: int, ids: list[Hashable], answers: list[Answer]) -> Callable[[], None]:
        """What ends a job, once."""
        began = time.monotonic()

        def close() -> None:
            if self._jobs.pop(number, None) is None:
                return
            timer.cancel()
            if (asking := self._asking.pop(number, None)) is not None:
                asking.cancel()
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
