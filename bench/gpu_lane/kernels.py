"""Attention and log-probs of the learner: each way that torch or an installed package has, its speed, memory and error; and
which way of log-probs a learner of this shape would choose.

The error is that against plain formulas in float32, of values and gradients, relative to their largest.
"""

from __future__ import annotations

import importlib.util
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict
from functools import cache, partial
from typing import TYPE_CHECKING

from table import Check

from gpu_lane.child import progress, sentence
from gpu_lane.job import Findings, Job, Row, Skipped
from gpu_lane.machine import timed
from gpu_lane.memory import Peak
from gpu_lane.shapes import SHAPES

if TYPE_CHECKING:
    import torch

    from rl_trainer.algorithms.token_log_probs import HeadWay

# Largest error relative to the largest value; ours are held to it, others are only shown.
_TOLERANCE = {"float32": 1e-4, "bfloat16": 3e-2}
_BACKENDS = ("MATH", "FLASH_ATTENTION", "EFFICIENT_ATTENTION", "CUDNN_ATTENTION")
OURS = "ours"
_CHUNKS = f"{OURS} (in chunks)"
# A choice is from times of its own, and these are others.
_SLOWER = 1.1


def measure(job: Job) -> Findings:
    """Rows of attention, then of log-probs."""
    import torch

    if job.device == "cpu":
        torch.set_num_threads(1)
    torch.manual_seed(0)
    findings = Findings()
    progress("attention")
    _try(job, findings, "attention", _attention_inputs(job), _attentions())
    progress("log-probs")
    _try(job, findings, "log-probs", _head_inputs(job), _log_probs(job))
    bound = _TOLERANCE[job.dtype]
    for row in findings.rows:
        if row["way"].startswith(OURS):
            check = Check(
                f"{row['kernel']}, {row['way']}, error",
                row["error"] <= bound,
                f"{row['error']:.1e}",
                f"<= {bound:g}",
            )
            findings.checks.append(asdict(check))
    _hold_choice(job, findings)
    return findings


def _hold_choice(job: Job, findings: Findings) -> None:
    """What a learner of this shape would choose, against its own chunks."""
    import torch

    from rl_trainer.learner.head_choice import HeadChoice, HeadShape, choose

    config, choice = SHAPES[job.shape].config, HeadChoice()
    if job.device == "cuda":
        choice = choose(
            HeadShape(
                config["vocab_size"],
                config["hidden_size"],
                SHAPES[job.shape].micro_batch,
                temperature=1.0,
                dtype=getattr(torch, job.dtype),
                learns=True,
                entropy_learns=False,
            ),
            torch.device("cuda"),
        )
    name = choice.way.name
    progress(choice.line or f"log-probs: {name}, as everywhere but on a GPU")
    rows = {row["way"]: row for row in findings.rows if row["kernel"] == "log-probs"}
    chosen, ours = (rows.get(_CHUNKS if one == OURS else one) for one in (name, OURS))
    if chosen is None or ours is None:
        findings.failed.append(f"log-probs: {name} was chosen, and could not be measured beside ours")
        return
    error, bound = chosen["error"], _TOLERANCE[job.dtype]
    times = chosen["ms"] / ours["ms"]
    findings.checks += [
        asdict(Check("log-probs, chosen, error", error <= bound, f"{name}: {error:.1e}", f"<= {bound:g}")),
        asdict(
            Check("log-probs, chosen, time", times <= _SLOWER, f"{name}: {times:.2f}x", f"<= {_SLOWER}x ours")
        ),
    ]


Inputs = tuple[list["torch.Tensor"], "torch.Tensor | None", float]
"""What learns, the targets where there are such, and the operations of forward and backward pass."""


def _attention_inputs(job: Job) -> Inputs:
    """q, k, v [B, heads, T, D] of one layer, keys with their fewer heads."""
    import torch

    config, (rows, length) = SHAPES[job.shape].config, SHAPES[job.shape].attention
    heads, keys = config["num_attention_heads"], config["num_key_value_heads"]
    size = config["hidden_size"] // heads
    made = [
        torch.randn(rows, count, length, size, device=job.device)
        .to(getattr(torch, job.dtype))
        .requires_grad_()
        for count in (heads, keys, keys)
    ]
    # Two products forward and five backward, over half of the square (Dao 2023, arXiv 2307.08691, section 4.1).
    return made, None, 7 * rows * heads * length**2 * size


def _head_inputs(job: Job) -> Inputs:
    """Final hidden states [N, H] and the head [V, H]; targets [N]."""
    import torch

    config = SHAPES[job.shape].config
    tokens = min(2048, SHAPES[job.shape].micro_batch)
    width, vocabulary = config["hidden_size"], config["vocab_size"]
    hidden = torch.randn(tokens, width, device=job.device).to(getattr(torch, job.dtype)).requires_grad_()
    weight = (torch.randn(vocabulary, width, device=job.device) * 0.02).to(hidden.dtype).requires_grad_()
    targets = torch.randint(0, vocabulary, (tokens,), device=job.device)
    return [hidden, weight], targets, 6 * tokens * width * vocabulary


def _attentions() -> Iterator[tuple[str, Callable[..., torch.Tensor]]]:
    yield "plain", _plain_attention
    yield f"{OURS} (sdpa, torch's choice)", _sdpa
    for name in _BACKENDS:
        yield f"sdpa {name.removesuffix('_ATTENTION').lower()}", partial(_sdpa, backend=name)
    yield "flash-attn", _flash_attn


def _log_probs(job: Job) -> Iterator[tuple[str, Callable[..., torch.Tensor]]]:
    from rl_trainer.algorithms.head_ways import CANDIDATES

    yield "plain", _plain_log_probs
    for name in CANDIDATES:
        yield _CHUNKS if name == OURS else name, partial(_log_probs_by, job.device, name)


def _try(
    job: Job,
    findings: Findings,
    kernel: str,
    inputs: Inputs,
    variants: Iterator[tuple[str, Callable[..., torch.Tensor]]],
) -> None:
    learns, targets, operations = inputs
    truth: list[torch.Tensor] | None = None
    for name, run in variants:
        try:
            row, found = _time(job, run, learns, targets, operations)
        except Exception as error:
            if name.startswith(OURS) or name == "plain":
                findings.failed.append(f"{kernel}, {name}: {sentence(error)}")
            else:
                findings.skipped.append(f"{kernel}, {name}: {sentence(error)}")
            continue
        if truth is None:
            truth = _truth(run, learns, targets)
        errors = [_error(one, other) for one, other in zip(found, truth, strict=True)]
        findings.rows.append({"kernel": kernel, "way": name, **row, "error": max(errors)})


def _time(
    job: Job,
    run: Callable[..., torch.Tensor],
    learns: Sequence[torch.Tensor],
    targets: torch.Tensor | None,
    operations: float,
) -> tuple[Row, list[torch.Tensor]]:
    found = _both_passes(run, learns, targets)  # raises where it cannot; compiles what is compiled
    peak = Peak(job)
    seconds = timed(job, lambda: _both_passes(run, learns, targets), 3)
    return {
        "ms": seconds * 1e3,
        "TFLOP/s": operations / seconds / 1e12,
        "highest, GB": peak.bytes() / 1e9,
    }, found


def _both_passes(
    run: Callable[..., torch.Tensor], learns: Sequence[torch.Tensor], targets: torch.Tensor | None
) -> list[torch.Tensor]:
    """The value, and the gradients of half its square's sum."""
    import torch

    value = run(*learns) if targets is None else run(*learns, targets)
    return [value.detach(), *torch.autograd.grad(value, list(learns), value.detach())]


def _truth(
    plain: Callable[..., torch.Tensor], learns: Sequence[torch.Tensor], targets: torch.Tensor | None
) -> list[torch.Tensor]:
    return _both_passes(plain, [one.detach().float().requires_grad_() for one in learns], targets)


def _error(found: torch.Tensor, truth: torch.Tensor) -> float:
    return float((found.float() - truth).abs().max() / truth.abs().max())


def _plain_attention(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    import torch

    times = q.shape[1] // k.shape[1]
    k, v = k.repeat_interleave(times, 1), v.repeat_interleave(times, 1)
    scores = q @ k.transpose(-1, -2) / q.shape[-1] ** 0.5
    future = torch.ones(q.shape[2], q.shape[2], dtype=torch.bool, device=q.device).triu(1)
    attended: torch.Tensor = scores.masked_fill(future, float("-inf")).softmax(-1) @ v
    return attended


def _sdpa(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, backend: str | None = None) -> torch.Tensor:
    """As `rl_trainer.model.block.Block` calls it."""
    import torch.nn.functional as F
    from torch.nn.attention import SDPBackend, sdpa_kernel

    def run() -> torch.Tensor:
        return F.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=q.shape[1] > k.shape[1])

    if backend is None:
        return run()
    with sdpa_kernel([getattr(SDPBackend, backend)]):
        return run()


def _flash_attn(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    _needed("flash_attn", "flash-attn")
    from flash_attn import flash_attn_func  # type: ignore[import-not-found]

    found: torch.Tensor = flash_attn_func(*(one.transpose(1, 2) for one in (q, k, v)), causal=True)
    return found.transpose(1, 2)


def _plain_log_probs(hidden: torch.Tensor, weight: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
    import torch

    log_p = torch.log_softmax((hidden @ weight.T).float(), dim=-1)
    return log_p.gather(1, targets.unsqueeze(1)).squeeze(1)


def _log_probs_by(
    device: str, name: str, hidden: torch.Tensor, weight: torch.Tensor, targets: torch.Tensor
) -> torch.Tensor:
    """As `rl_trainer.learner.policy.Policy` asks for them, with entropies, which `plain` does not have."""
    from rl_trainer.algorithms.token_log_probs import head_token_log_probs

    return head_token_log_probs(hidden, weight, targets, way=_way(device, name))[0]


@cache
def _way(device: str, name: str) -> HeadWay:
    from rl_trainer.algorithms.head_ways import COMPILED, NoSuchWay, head_way

    if name == COMPILED and device == "cpu":
        raise Skipped("kernels are compiled for GPUs")
    try:
        return head_way(name)
    except NoSuchWay as error:
        raise Skipped(str(error)) from error


def _needed(module: str, package: str) -> None:
    if importlib.util.find_spec(module) is None:
        raise Skipped(f"{package} is not installed here")
