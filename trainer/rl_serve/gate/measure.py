"""A policy under test: opened as a replica opens it, asked, timed, and held against a plain forward pass."""

from __future__ import annotations

import time
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass
from statistics import median
from typing import Final

import numpy as np
import numpy.typing as npt
import torch

from rl_api.errors import DeadlineExceeded, InvalidConfig, ModelError, TaskError
from rl_serve.gate.heldout import HeldOut
from rl_serve.gate.probe import Probe
from rl_serve.gate.report import Agreement, Latency
from rl_serve.policy import Policy
from rl_trainer.model.chat import Chat
from rl_trainer.model.loader import load_model
from rl_trainer.model.tokenizer import load_tokenizer
from rl_trainer.rollout.engines.base import GenerationRequest, GenerationResult, SamplingParams
from rl_trainer.rollout.engines.create import create_engine
from rl_trainer.rollout.engines.vllm_needs import ONE_DEVICE, EngineKind, VllmOptions
from rl_trainer.rollout.group_rollout import GroupFailure
from rl_trainer.rollout.loop import Rollouts, stop_tokens

Tokens = npt.NDArray[np.int32]

SLOTS: Final = 32
# Sequences that are timed together, the tokens of their prompts, and those that they get.
_TIMED, _PROMPT, _TOKENS = 8, 16, 32
# Both policies take turns at least and at most so often, no more after some seconds: a machine is rarely idle.
_LEAST_ROUNDS, _MOST_ROUNDS, _ENOUGH_SECONDS = 9, 51, 5.0
# Sequences that are sampled for the agreement, and how long they get.
_SAMPLED, _SAMPLED_TOKENS = 32, 64
_SEED: Final = 20


class Clock:
    """The deadline of an evaluation, and who hears how far it is.

    Args:
        seconds: from now on.
        tell: hears a line when something begins, and now and then while it lasts.
    """

    def __init__(self, seconds: float, tell: Callable[[str], None] = lambda text: None) -> None:
        self._seconds, self._end = seconds, time.monotonic() + seconds
        self._tell, self._told = tell, -1.0

    def begin(self, what: str) -> None:
        """Something begins."""
        self._told = -1.0
        self.look(what)

    def look(self, what: str) -> None:
        """Call it often.

        Raises:
            DeadlineExceeded: the time is over.
        """
        now = time.monotonic()
        if now > self._end:
            raise DeadlineExceeded(
                f"gate: {what}: not done after {self._seconds:g} s; give it more time, or fewer prompts (heldOut.samples)"
            )
        if now > self._told + 1.0:
            self._told = now
            self._tell(what)


@dataclass(frozen=True)
class Answers:
    """What a policy made of some prompts.

    Attributes:
        right: of each prompt; None: the task's scorer failed on it, and the run drops such prompts.
        prompts: as token ids.
        sound: every log-probability is a number.
    """

    right: tuple[bool | None, ...]
    prompts: tuple[Tokens, ...]
    sound: bool


class Opened:
    """An engine of its own for one policy, of the types that a replica has on this device.

    Args:
        policy: its folder is read here, and once more for the agreement.
        who: as sentences name it.
        device: `cpu` or `cuda`.
        engine, vllm: see `rl_serve.loading.Serving`.

    Attributes:
        sound: the model gives probabilities that are numbers.

    Raises:
        ModelError: it cannot be loaded.
        InvalidConfig: vLLM cannot run here.
    """

    def __init__(
        self,
        policy: Policy,
        who: str,
        device: str = "cpu",
        engine: EngineKind = "torch",
        vllm: VllmOptions = ONE_DEVICE,
    ) -> None:
        self.policy, self.who, self._device = policy, who, device
        self._dtype = torch.float32 if device == "cpu" else torch.bfloat16
        self.tokenizer = load_tokenizer(policy.folder)
        self.engine = create_engine(
            policy.folder, slots=SLOTS, kind=engine, dtype=self._dtype, device=device, options=vllm
        )
        if self.tokenizer.has_chat_template:
            self.tokenizer.encode_chat([{"role": "user", "content": ""}])
        # Once before anything is timed.
        self.sound = all(_is_sound(result.logprobs) for result in self._timed_batch(2))

    def plain_prompts(self) -> list[Tokens]:
        """Prompts without meaning that every model takes."""
        length = max(1, min(_PROMPT, self.engine.context // 2))
        ids = np.arange(_TIMED * length) % self.engine.vocab_size
        return list(ids.astype(np.int32).reshape(_TIMED, length))

    def answer_heldout(self, asked: HeldOut, clock: Clock) -> Answers:
        """Greedy answers to held-out prompts, as the run's own evaluation asks for them.

        Raises:
            RewardError: the task's scorer or environment failed, and the run stops on that.
            TaskError, InvalidConfig: the prompts do not fit the model.
            DeadlineExceeded: see `Clock`.
        """
        spec, what = asked.spec, f"held-out prompts, {self.who}"
        evaluation = spec.task.evaluation
        longest = (evaluation and evaluation.max_new_tokens) or spec.sampler.max_new_tokens
        stop = self.tokenizer.stop_ids | stop_tokens(self.tokenizer, spec.sampler.stop)
        params = SamplingParams(longest, temperature=0.0, stop_token_ids=stop)
        chat = Chat.of(self.tokenizer, spec.task)
        rollouts = Rollouts(self.engine, chat, asked.task, max_turns=spec.task.max_turns)
        right: list[bool | None] = [None] * len(asked.prompts)
        prompts: list[Tokens] = []
        clock.begin(what)
        sound = True
        left = len(asked.prompts)
        for number, prompt in enumerate(asked.prompts):
            rollouts.start(number, prompt, 1, params, spec.seed)
        while left:
            for group in rollouts.advance():
                left -= 1
                if isinstance(group, GroupFailure):
                    if spec.task.on_reward_error != "drop":
                        raise group.error
                    continue
                score = group.members[0].score
                right[int(str(group.key))] = score is not None and score.exact
                trajectory = group.trajectories()[0]
                prompts.append(trajectory.tokens[: int(np.argmax(trajectory.mask))])
                sound = sound and _is_sound(trajectory.log_probs)
            clock.look(f"{what}: {len(asked.prompts) - left} of {len(asked.prompts)}")
            if not rollouts.members_in_engine and (wait := rollouts.seconds_to_next_reply()):
                time.sleep(min(wait, 0.2))
        return Answers(tuple(right), tuple(prompts), sound)

    def answer_probe(self, probe: Probe, clock: Clock) -> Answers:
        """Greedy answers to the probe's questions, each as the server would be asked it.

        Raises:
            InvalidConfig: a question does not fit the model.
            DeadlineExceeded: see `Clock`.
        """
        prompts = [self._question(number, probe) for number in range(len(probe.questions))]
        params = SamplingParams(probe.max_new_tokens, temperature=0.0, stop_token_ids=self.tokenizer.stop_ids)
        found = self._run(prompts, params, clock, f"probe, {self.who}")
        right = [
            probe.right(number, self.tokenizer.decode(self._said(result))) for number, result in found.items()
        ]
        sound = all(_is_sound(result.logprobs) for result in found.values())
        return Answers(tuple(right), tuple(prompts), sound)

    def agreement(self, prompts: Sequence[Tokens], clock: Clock) -> Agreement:
        """How far the log-probabilities that the engine reports of what it samples (temperature 1) are from those that the
        model itself gives the same tokens, read at once (teacher forcing).

        Raises:
            DeadlineExceeded: see `Clock`.
        """
        params = SamplingParams(_SAMPLED_TOKENS, stop_token_ids=self.tokenizer.stop_ids)
        asked = list(prompts[:_SAMPLED])
        found = self._run(asked, params, clock, f"agreement, {self.who}")
        model = load_model(self.policy.folder, self._dtype, self._device).eval()
        total, count = 0.0, 0
        for number, result in found.items():
            clock.look(f"agreement, {self.who}: forward pass {number + 1} of {len(asked)}")
            expected = self._forced(model, asked[number], result.tokens)
            total += float(np.abs(expected - result.logprobs.astype(np.float64)).sum())
            count += len(result.tokens)
        return Agreement(total / count if count else float("nan"), count)

    def seconds_per_token(self) -> float:
        """Seconds between two tokens, of a batch of sequences that all get as long."""
        longest = min(_TOKENS, self.engine.context // 2)
        began = time.perf_counter()
        self._timed_batch(longest)
        return (time.perf_counter() - began) / longest

    def _timed_batch(self, tokens: int) -> list[GenerationResult]:
        params = SamplingParams(tokens, temperature=0.0)
        self.engine.add([GenerationRequest(i, one, params) for i, one in enumerate(self.plain_prompts())])
        return self._drain(lambda done: None)

    def _run(
        self, prompts: Sequence[Tokens], params: SamplingParams, clock: Clock, what: str
    ) -> Mapping[int, GenerationResult]:
        """A result for each prompt, in order."""
        clock.begin(what)
        self.engine.add([GenerationRequest(i, one, params, _SEED + i) for i, one in enumerate(prompts)])
        found = self._drain(lambda done: clock.look(f"{what}: {done} of {len(prompts)}"))
        by_id: dict[Hashable, GenerationResult] = {result.id: result for result in found}
        return {number: by_id[number] for number in range(len(prompts))}

    def _drain(self, look: Callable[[int], None]) -> list[GenerationResult]:
        found: list[GenerationResult] = []
        while self.engine.active or self.engine.waiting:
            found += self.engine.step()
            look(len(found))
        return found

    def _question(self, number: int, probe: Probe) -> Tokens:
        """The tokens of a question; raises InvalidConfig where the model cannot take it."""
        content = probe.questions[number].content
        try:
            ids = (
                self.tokenizer.encode(content)
                if isinstance(content, str)
                else self.tokenizer.encode_chat(content)
            )
            tokens = np.asarray(ids, np.int32)
            self.engine.check_request(GenerationRequest(number, tokens, SamplingParams(1)))
        except (ModelError, TaskError) as error:
            raise InvalidConfig(f"probe: question {number + 1}: {error}") from None
        return tokens

    def _said(self, result: GenerationResult) -> list[int]:
        """Its tokens without the one that ends it."""
        tokens: list[int] = result.tokens.tolist()
        return tokens[:-1] if tokens and tokens[-1] in self.tokenizer.stop_ids else tokens

    @torch.inference_mode()
    def _forced(self, model: torch.nn.Module, prompt: Tokens, tokens: Tokens) -> npt.NDArray[np.float64]:
        """Log-probabilities float64 [T] of `tokens` after `prompt`, from one forward pass."""
        ids = torch.from_numpy(np.concatenate([prompt, tokens]).astype(np.int64)).to(self._device)
        logits = model(ids[None, :-1])[0, len(prompt) - 1 :].float()
        found = torch.log_softmax(logits, -1).gather(1, ids[len(prompt) :, None])[:, 0]
        return found.double().cpu().numpy()


def time_both(candidate: Opened, serving: Opened | None, clock: Clock) -> Latency:
    """Seconds for a token, both policies in turns, so that what else the machine does meets both alike.

    Raises:
        DeadlineExceeded: see `Clock`.
    """
    clock.begin("latency")
    ours: list[float] = []
    theirs: list[float] = []
    began = time.monotonic()
    for number in range(_MOST_ROUNDS):
        if number >= _LEAST_ROUNDS and time.monotonic() > began + _ENOUGH_SECONDS:
            break
        clock.look(f"latency: round {number + 1}")
        turns = [(candidate, ours), *([(serving, theirs)] if serving else [])]
        for one, seconds in turns[:: -1 if number % 2 else 1]:
            seconds.append(one.seconds_per_token())
    if not theirs:
        return Latency(median(ours), None, None)
    return Latency(median(ours), median(theirs), median(a / b for a, b in zip(ours, theirs, strict=True)))


def _is_sound(log_probs: npt.NDArray[np.float32]) -> bool:
    return not bool(np.isnan(log_probs).any())
