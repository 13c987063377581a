"""All that actors measure of a run, joined to the profile from which placements are planned. Pure."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from rl_api.planner.profile import (
    MOST_LENGTHS,
    DecodeProfile,
    DevicesProfile,
    LearnerProfile,
    Memories,
    RoleMemory,
    RunProfile,
    Switches,
    SwitchProfile,
)
from rl_api.run import RunSpec
from rl_trainer.observe.step_times import SWITCHES
from rl_trainer.observe.timeline import MEASURED, Span
from rl_trainer.profile.idle import Idle
from rl_trainer.profile.least_squares import LeastSquares
from rl_trainer.profile.reservoir import Reservoir
from rl_trainer.trajectory import Group

# After so many steps what was measured weighs half: caches fill, answers grow, machines change.
HALF_LIFE = 50
# What a learner's seconds go to, besides the rest.
_PASSES = ("passes", "log_probs", "values")
_PARTS = (*_PASSES, "reduce", "optimizer")
# Of a sampler whose task has no workers of such a kind: see `WorkMeter.drain`.
_NO_WORK = (0.0, 0, None)


@dataclass
class Mean:
    """A mean of numbers of which earlier ones weigh less and less."""

    total: float = 0.0
    weight: float = 0.0

    def add(self, total: float, weight: float = 1.0) -> None:
        """`weight` numbers whose sum is `total`."""
        self.total += total
        self.weight += weight

    def forget(self, kept: float) -> None:
        """See `LeastSquares.forget`."""
        self.total, self.weight = kept * self.total, kept * self.weight

    @property
    def value(self) -> float:
        """The mean; 0: nothing was measured."""
        return self.total / self.weight if self.weight else 0.0


@dataclass
class Measurements:
    """What is known of a run so far; `step` takes in one more of its training steps.

    The first step is forgotten when there is a second one: libraries and caches are cold in it.
    """

    spec: RunSpec
    steps: int = 0
    lengths: Reservoir = field(init=False)
    _decode: LeastSquares = field(default_factory=lambda: LeastSquares(3))
    _means: dict[str, Mean] = field(default_factory=lambda: defaultdict(Mean))
    _idle: Idle = field(init=False)
    _contention: dict[str, float] = field(default_factory=dict)
    _fixed_tokens: float | None = None
    _reads_again: bool = False
    _device_memory: float | None = None
    _beyond: float = math.inf  # seconds of a simulator's call in which it does not work
    _memory: dict[str, dict[str, float]] = field(default_factory=lambda: defaultdict(dict))

    def __post_init__(self) -> None:
        self.lengths = Reservoir(MOST_LENGTHS, self.spec.seed)
        self._idle = Idle(self.spec)

    def step(
        self, groups: Sequence[Group], spans: Iterable[Span], during: tuple[float, float] | None = None
    ) -> None:
        """One training step: the groups that it trained on, and what all actors did since the one before.

        `during`: its beginning and its end, seconds since the epoch; None: not known, and nothing is said of its overhead.
        """
        spans = list(spans)
        if self.steps == 1:
            self._decode, self._means = LeastSquares(3), defaultdict(Mean)
        self.steps += 1
        kept = 0.5 ** (1 / HALF_LIFE)
        self._decode.forget(kept)
        for mean in self._means.values():
            mean.forget(kept)
        lengths = [length for group in groups for length in group.lengths]
        self.lengths.add(lengths)
        tokens = sum(length for group in groups for length in group.total_lengths)
        self._means["prompt"].add(tokens - sum(lengths), len(lengths))
        learners: list[Span] = []
        for span in spans:
            role = span.actor.split(" ")[0]
            if span.name != MEASURED:
                self._took(role, span)
            elif role == "sampler":
                self._sampler(span.args)
            elif role == "learner":
                learners.append(span)
                self._remember("learner", span.args)
                if (size := span.args.get("device_memory")) is not None:
                    self._device_memory = min(float(size), self._device_memory or float(size))
        self._means["score"].add(0.0, len(groups))
        for name in ("tool", "waits", "waited"):
            self._means[name].add(0.0, len(lengths))
        self._learned(learners, tokens)
        for role, seconds in self._idle.wakes(spans):
            self._means[f"wake/{role}"].add(seconds)
        for role, (beside, seconds) in self._idle.company().items():
            self._means[f"company/{role}"].add(beside, seconds)
        if during is not None:
            self._means["overhead"].add(self._idle.overhead(spans, during))

    def switched(self, spans: Iterable[Span]) -> None:
        """What it takes to change who has the devices, where that was tried; of several numbers the mean."""
        for span in spans:
            self._took(span.actor.split(" ")[0], span)

    def contended(self, shares: Mapping[str, float]) -> None:
        """By role the `contention` that was tried."""
        self._contention = dict(shares)

    def fixed(self, tokens: float) -> None:
        """A pass takes as long as if it had so many more and nothing that does not grow with them, as that was tried."""
        self._fixed_tokens = tokens

    def profile(self) -> RunProfile | None:
        """What was measured; None: not enough of it, as with an engine that tells nothing of its steps."""
        coefficients, trained = self._decode.fit(), self._means["passes"]
        if coefficients is None or not trained.weight or not self.lengths.kept:
            return None
        per_pass, grows = self._fixed()
        base, per_active, per_cached_token = self._split(coefficients, grows * trained.value)
        spec, prefill = self.spec, self._means["prefill"].value
        mean = {name: self._means[name].value for name in ("prompt", "score", "tool", "rest", *_PARTS)}
        limit = spec.sampler.max_new_tokens
        simulated, queued = self._queued()
        return RunProfile(
            devices=DevicesProfile(
                learner=spec.learner.ranks,
                sampler=spec.sampler.replicas,
                per_sampler=max(1, spec.sampler.devices),
                memory=self._device_memory,
                learner_company=self._means["company/learner"].value,
                sampler_company=self._means["company/sampler"].value,
                reward_models=_replicas(spec, "reward model"),
                simulators=_replicas(spec, "simulator"),
            ),
            steps=self.steps,
            group_size=spec.algorithm.group_size,
            prompts_per_step=spec.algorithm.prompts_per_step,
            max_staleness=spec.buffer.max_staleness,
            decode=DecodeProfile(
                base=base,
                per_active=per_active,
                per_cached_token=per_cached_token,
                slots=spec.sampler.max_sequences,
                contention=self._contention.get("sampler"),
            ),
            prefill_tokens_per_second=1 / prefill if prefill else None,
            prompt_tokens=max(0.0, mean["prompt"]),
            reads_again=self._reads_again,
            lengths=tuple(min(length, limit) for length in self.lengths.kept),
            limit=limit,
            score_seconds=mean["score"],
            judge_seconds=self._means["judge"].value * spec.algorithm.group_size,
            tool_seconds=mean["tool"],
            simulator_seconds=simulated,
            queued_seconds=queued,
            learner=LearnerProfile(
                alpha=mean["rest"],
                per_pass=per_pass,
                beta=grows * trained.value,
                all_reduce=mean["reduce"],
                optimizer=mean["optimizer"],
                log_prob=grows * mean["log_probs"],
                value=grows * mean["values"],
                contention=self._contention.get("learner"),
            ),
            publish_seconds=sum(
                self._means[f"publish/{part}"].value for part in ("learner", "driver", "load")
            ),
            load_seconds=self._means["publish/load"].value,
            overhead_seconds=self._means["overhead"].value,
            switch=Switches(learner=self._switch("learner"), sampler=self._switch("sampler")),
            memory=Memories(learner=self._role("learner"), sampler=self._role("sampler")),
        )

    def _split(self, fitted: tuple[float, ...], learned: float) -> tuple[float, float, float]:
        """What a decode step takes for each sequence, where all steps had as many and a fit cannot know it: as for a token
        of learners, of whose `learned` seconds the forward pass is a third (2 of 6 operations per parameter: Kaplan et al.
        2020)."""
        base, per_active, per_cached_token = fitted
        if self._decode.varies(1):
            return base, per_active, per_cached_token
        active = self._decode.mean(1)
        whole = base + per_active * active
        token = learned / 3 / max(1, self.spec.sampler.devices)
        each = min(whole / active, token)
        return whole - each * active, each, per_cached_token

    def _fixed(self) -> tuple[float | None, float]:
        """Seconds of a part's passes that do not grow with its tokens, and the share of all that does. Not of parts of
        several passes, of which there are fewer in smaller parts."""
        algorithm, tokens, added = self.spec.algorithm, self._means["part"].value, self._fixed_tokens
        several = algorithm.mini_batches * algorithm.epochs > 1
        if added is None or several or not 0 < tokens <= self.spec.learner.tokens_per_micro_batch:
            return None, 1.0
        whole = tokens * sum(self._means[part].value for part in _PASSES)
        return whole * added / (tokens + added), tokens / (tokens + added)

    def _took(self, role: str, span: Span) -> None:
        seconds = max(0.0, span.end - span.start)
        if (role, span.name) == ("sampler", "score"):
            self._means["score"].add(seconds, 0.0)
        elif span.name == "publish":
            self._means[f"publish/{role}"].add(seconds)
        elif (role, span.name) == ("sampler", "load weights"):
            self._means["publish/load"].add(seconds)
        elif span.name in SWITCHES:
            self._means[f"{span.name}/{role}"].add(seconds)

    def _sampler(self, numbers: Mapping[str, Any]) -> None:
        self._decode.merge(numbers["decode"])
        self._means["prefill"].add(numbers["prefill_seconds"], numbers["prefill_tokens"])
        self._means["tool"].add(numbers["tool_seconds"], 0.0)
        self._reads_again = bool(numbers.get("reads_again", False))
        self._workers(numbers)
        self._remember("sampler", numbers)

    def _workers(self, numbers: Mapping[str, Any]) -> None:
        """What simulators and models that score have done for a group, and how long it waited for the former."""
        seconds, count, _ = numbers.get("reward_models", _NO_WORK)
        self._means["judge"].add(seconds, count)  # also of held-out answers, which are no group's
        seconds, count, beyond = numbers.get("simulators", _NO_WORK)
        self._means["simulator"].add(seconds, count)
        if beyond is not None:
            self._beyond = min(self._beyond, beyond)
        self._means["waits"].add(numbers.get("waits", 0), 0.0)
        self._means["waited"].add(numbers.get("waited_seconds", 0.0), 0.0)

    def _queued(self) -> tuple[float, float]:
        """Seconds that a simulator works for an answer; and those that this waits meanwhile for others' turns, besides the
        way to a worker and back."""
        turns, each = self._means["waits"].value, self._means["simulator"].value
        beyond = self._beyond if self._beyond < math.inf else 0.0
        return turns * each, max(0.0, self._means["waited"].value - turns * (each + beyond))

    def _learned(self, told: Sequence[Span], tokens: int) -> None:
        """A step's seconds by what they went to: all ranks wait for the slowest one, and those that are done before it do so
        within their all-reduce."""
        ranks: dict[str, Mean] = defaultdict(Mean)  # of each rank parts, and what is left of its seconds
        parts: dict[str, dict[str, float]] = {part: defaultdict(float) for part in _PARTS}
        for span in told:
            left = float(span.args["seconds"])
            for part, seconds in parts.items():
                took = float(span.args.get(part, 0.0))
                seconds[span.actor] += took
                left -= took
            ranks[span.actor].add(max(0.0, left), "passes" in span.args)
        slowest = {part: max(seconds.values(), default=0.0) for part, seconds in parts.items()}
        if not slowest["passes"] or not tokens:
            return
        share = tokens / len(ranks)
        for part in _PASSES:
            self._means[part].add(slowest[part], share)
        self._means["reduce"].add(min(parts["reduce"].values()))
        self._means["optimizer"].add(slowest["optimizer"])
        rest = max(ranks.values(), key=lambda one: one.total)
        self._means["rest"].add(rest.total, rest.weight)
        self._means["part"].add(share, rest.weight)

    def _remember(self, role: str, numbers: Mapping[str, Any]) -> None:
        """The most of each kind of memory that an actor of the role had."""
        held = self._memory[role]
        for name in ("weights", "moments", "activations_per_token", "cache_bytes_per_token"):
            if name in numbers:
                held[name] = max(held.get(name, 0.0), float(numbers[name]))

    def _switch(self, role: str) -> SwitchProfile:
        return SwitchProfile(**{part: self._means[f"{part}/{role}"].value for part in SWITCHES})

    def _role(self, role: str) -> RoleMemory:
        learner = self.spec.learner
        # Of a group of ranks of its own size each rank's part stays as large however many groups there are.
        divided = role == "learner" and learner.parallelism == "fsdp2" and learner.fsdp_size is None
        return RoleMemory.model_validate(self._memory[role] | {"divided": divided}, by_name=True)


def _replicas(spec: RunSpec, kind: str) -> int:
    """Of the task's workers of that kind."""
    workers = spec.given_task.workers.get(kind) if spec.given_task is not None else None
    return 0 if workers is None else workers.replicas
