"""Which way a learner computes log-probs through the output head: on a GPU the fastest of those that find what ours finds.

Every candidate runs forward and backward on random numbers, with a head of the model's size and the tokens of a micro-batch:
to be compared, in the other sizes that a run asks for, and to be timed. One way serves every pass, as their log-probs are
compared with each other.
"""

from __future__ import annotations

import math
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from dataclasses import dataclass
from functools import partial

import torch
import torch.distributed as dist
from torch import Tensor

from rl_api import RunSpec
from rl_trainer.algorithms.head_ways import CANDIDATES, NoSuchWay, head_way
from rl_trainer.algorithms.token_log_probs import OURS, HeadWay, head_rows, head_token_log_probs
from rl_trainer.error_text import first_line
from rl_trainer.learner.policy import Policy

# Largest allowed `Tried.values` and `Tried.gradients`. In bfloat16 logits as large as a trial's are rounded by up to 0.06,
# ours as well, and are divided by the temperature.
_VALUES = {torch.float32: 1e-4, torch.bfloat16: 0.15}
_GRADIENTS = {torch.float32: 1e-4, torch.bfloat16: 0.03}
MORE_MEMORY = 2**26
"""Bytes that a way may hold beyond what ours does: a chunk of logits."""
_MOST_TOKENS = 2**16
LEAST_GAIN = 0.97
"""Of the seconds of ours, at most, that another way has to take for its place: less is noise."""
_TIMED = 3  # passes, of which the fastest counts


@dataclass(frozen=True)
class HeadShape:
    """What decides how fast and how exact each way is.

    Attributes:
        vocabulary, width: of the head [V, H].
        tokens: of a pass.
        temperature: of the log-probs.
        dtype: of products; what is multiplied is kept in float32.
        learns: whether the head has a gradient.
        entropy_learns: whether the entropy has one.
    """

    vocabulary: int
    width: int
    tokens: int
    temperature: float
    dtype: torch.dtype
    learns: bool
    entropy_learns: bool


@dataclass(frozen=True)
class Tried:
    """What a way did in its trial.

    Attributes:
        seconds: of a forward and a backward pass, the fastest of several.
        memory: highest bytes of these passes, beyond what there was before.
        values: largest difference of a log-prob or entropy from ours, nats.
        gradients: largest difference of a gradient, in parts of the largest of ours.
    """

    seconds: float
    memory: int
    values: float
    gradients: float


@dataclass(frozen=True)
class HeadChoice:
    """A way, what it was chosen for (None: nothing was tried), why in one line, and how many seconds that took."""

    way: HeadWay = OURS
    shape: HeadShape | None = None
    line: str = ""
    seconds: float = 0.0


def objection(tried: Tried, ours: Tried, dtype: torch.dtype) -> str:
    """Why a way may not take the place of ours; empty: it may."""
    # Not a number is no agreement.
    if not tried.values <= _VALUES[dtype]:
        return f"log-probs or entropies differ by {tried.values:.1e}, allowed: {_VALUES[dtype]:g}"
    if not tried.gradients <= _GRADIENTS[dtype]:
        return f"gradients differ by {tried.gradients:.1e}, allowed: {_GRADIENTS[dtype]:g}"
    more = tried.memory - ours.memory
    if more > MORE_MEMORY:
        return f"{more / 2**20:.0f} MiB more than ours, allowed: {MORE_MEMORY // 2**20}"
    return ""


def fastest(seconds: Mapping[str, float]) -> str:
    """The name with the fewest seconds; ours, the first, where no other is clearly faster. Infinite: it may not be taken."""
    ours, *_ = seconds
    best = min(seconds, key=lambda name: seconds[name])
    return best if seconds[best] <= LEAST_GAIN * seconds[ours] and seconds[best] < math.inf else ours


def choose(
    shape: HeadShape, device: torch.device, ranks: int = 1, names: Sequence[str] = CANDIDATES
) -> HeadChoice:
    """Tries the ways of these `names`, of which ours is the first, and takes the fastest that every rank can."""
    began = time.perf_counter()
    with _given_back(device):
        ways, found, left_out = trials(shape, device, names)
    seconds = [found[name].seconds if name in found and name not in left_out else math.inf for name in names]
    if ranks > 1:
        # Ranks wait for the slowest, and where one of them cannot have a way, none has it.
        slowest = torch.tensor(seconds, dtype=torch.float64, device=device)
        dist.all_reduce(slowest, op=dist.ReduceOp.MAX)
        seconds = slowest.tolist()
    # The first of equals is ours: where nothing could be timed, too.
    name = fastest(dict(zip(names, seconds, strict=True)))
    parts = [
        f"{one} {1e3 * value:.1f} ms"
        if value < math.inf
        else f"{one}: {left_out.get(one, 'another rank cannot')}"
        for one, value in zip(names, seconds, strict=True)
    ]
    line = f"log-probs of {shape.tokens} tokens through the output head: {name} ({'; '.join(parts)})"
    return HeadChoice(ways[name], shape, line, time.perf_counter() - began)


def trials(
    shape: HeadShape, device: torch.device, names: Sequence[str]
) -> tuple[dict[str, HeadWay], dict[str, Tried], dict[str, str]]:
    """The ways there are, what each did, and why some may not be taken, by name.

    Ours, the first, is what others are held against: where that cannot be tried, as memory is short, nothing is.
    """
    ways, found, left_out = {OURS.name: OURS}, dict[str, Tried](), dict[str, str]()
    try:
        trial = _Trial(shape, device)
        found[OURS.name] = trial.of(OURS)
    except Exception as error:
        return ways, {}, dict.fromkeys(names, "not tried") | {OURS.name: _failed(error)}
    for name in names[1:]:
        try:
            way = ways[name] = head_way(name)
            if way.fused is not None and shape.entropy_learns:
                raise NoSuchWay("has no gradient of the entropy")
            found[name] = trial.of(way)
            if why := objection(found[name], found[OURS.name], shape.dtype):
                left_out[name] = why
        except NoSuchWay as error:
            left_out[name] = str(error)
        except Exception as error:  # compilers and kernels raise kinds of their own
            left_out[name] = _failed(error)
    return ways, found, left_out


def _failed(error: Exception) -> str:
    return f"{type(error).__name__}: {first_line(error)}"


def _largest(values: Tensor) -> float:
    """The largest magnitude, without a copy; not a number where there is one."""
    return float(torch.linalg.vector_norm(values, ord=math.inf))


@contextmanager
def _given_back(device: torch.device) -> Iterator[None]:
    """Memory of the block goes back to the device, and does not count as the process's highest."""
    try:
        yield
    finally:
        if device.type == "cuda":
            with suppress(Exception):  # where a kernel has broken the device, whoever computes next says so
                torch.cuda.empty_cache()
                torch.cuda.reset_peak_memory_stats(device)


class _Trial:
    """Inputs of a shape, and what ours finds for them. Random numbers are of a generator of its own."""

    def __init__(self, shape: HeadShape, device: torch.device) -> None:
        self._shape, self._device = shape, device
        generator = torch.Generator(device).manual_seed(0)
        normal = partial(torch.randn, device=device, generator=generator)
        self._hidden = normal(shape.tokens, shape.width).requires_grad_()
        # Logits of deviation 3, whatever the width: of smaller ones a gradient is hardly more than its part of the targets.
        scale = 3 * shape.width**-0.5
        self._head = normal(shape.vocabulary, shape.width).mul_(scale).requires_grad_(shape.learns)
        self._targets = torch.randint(shape.vocabulary, (shape.tokens,), device=device, generator=generator)
        self._upstream = normal(shape.tokens)
        self._ours: list[Tensor] | None = None

    def of(self, way: HeadWay) -> Tried:
        """Runs it several times, first to be compared. The first way is compared with itself."""
        found = self._passes(way)
        self._ours = self._ours or found
        (values, _), *gradients = [
            (_largest(one - other), _largest(other)) for one, other in zip(found, self._ours, strict=True)
        ]
        del found
        self._other_forms(way)
        before = self._marked()
        seconds = min(self._timed(way) for _ in range(_TIMED))
        shares = [difference / (largest or 1.0) for difference, largest in gradients]
        # `max` would pass over what is not a number.
        worst = math.nan if any(map(math.isnan, shares)) else max(shares)
        return Tried(seconds, self._highest() - before, values, worst)

    def _timed(self, way: HeadWay) -> float:
        began = time.perf_counter()
        self._passes(way)
        self._wait()
        return time.perf_counter() - began

    def _other_forms(self, way: HeadWay) -> None:
        """What a run asks for besides, so that it is compiled, or fails, here: one token, one chunk, a last chunk of one
        token, and log-probs alone."""
        tokens, rows = self._shape.tokens, head_rows(self._shape.vocabulary)
        for count in sorted({1, min(tokens, rows) // 2, rows + 1} & set(range(1, tokens + 1))):
            self._passes(way, count)
        with torch.no_grad(), self._precision():
            head_token_log_probs(
                self._hidden, self._head, self._targets, self._shape.temperature, way=way, entropy=False
            )

    def _passes(self, way: HeadWay, count: int | None = None) -> list[Tensor]:
        """Log-probs and entropies [2, N] of all or the first `count` tokens, and gradients of what learns."""
        shape = self._shape
        with self._precision():
            log_probs, entropy = head_token_log_probs(
                self._hidden[:count], self._head, self._targets[:count], shape.temperature, way=way
            )
        learns = [self._hidden, self._head] if shape.learns else [self._hidden]
        values = [log_probs, entropy] if shape.entropy_learns else [log_probs]
        return [
            torch.stack((log_probs, entropy)).detach(),
            *torch.autograd.grad(values, learns, [self._upstream[:count]] * len(values)),
        ]

    def _precision(self) -> AbstractContextManager[object]:
        half = self._shape.dtype != torch.float32
        return torch.autocast(self._device.type, self._shape.dtype) if half else nullcontext()

    def _wait(self) -> None:
        if self._device.type == "cuda":
            torch.cuda.synchronize(self._device)

    def _marked(self) -> int:
        """Bytes that there are when all is done; what `_highest` says is from now on."""
        self._wait()
        if self._device.type != "cuda":
            return 0
        torch.cuda.reset_peak_memory_stats(self._device)
        return torch.cuda.memory_allocated(self._device)

    def _highest(self) -> int:
        return torch.cuda.max_memory_allocated(self._device) if self._device.type == "cuda" else 0


class HeadChooser:
    """The choice of one learner. With several ranks all of them make every call, in the same order.

    Args:
        spec: of the run.
        device: anything but a GPU has ours, and nothing is timed.
        ranks: with more than one, `torch.distributed` is initialised.
        entropy_learns: whether the loss has the entropy's gradient.
    """

    def __init__(self, spec: RunSpec, device: torch.device, ranks: int, entropy_learns: bool) -> None:
        self._spec, self._device, self._ranks = spec, device, ranks
        self._entropy_learns = entropy_learns
        self.choice = HeadChoice()

    def choose(self, policy: Policy, reference: Policy | None) -> None:
        """For both, once it is known what of `policy` learns, and before optimizer and gradients have their memory.

        What was chosen stays where nothing has changed that it depends on. A model that returns its logits has ours.
        """
        head = policy.model.head_weight
        if self._device.type == "cuda" and isinstance(head, Tensor):
            shape = self._shape(head)
            if shape != self.choice.shape:
                self.choice = choose(shape, self._device, self._ranks)
        for one in (policy, reference):
            if one is not None:
                one.way = self.choice.way

    def _shape(self, head: Tensor) -> HeadShape:
        spec = self._spec
        vocabulary, width = head.shape
        return HeadShape(
            vocabulary,
            width,
            tokens=min(spec.learner.tokens_per_micro_batch, _MOST_TOKENS),
            temperature=spec.sampler.temperature,
            dtype=getattr(torch, spec.model.dtype),
            learns=head.requires_grad,
            entropy_learns=self._entropy_learns,
        )
