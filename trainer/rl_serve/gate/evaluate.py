"""The gate from end to end: two policies, a run folder and a probe in, a report out. No Ray here: an actor may carry it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch

from rl_api.errors import CheckpointError, InvalidConfig, ModelError
from rl_serve.gate.criteria import Gate
from rl_serve.gate.heldout import load_heldout
from rl_serve.gate.judge import Measured, Paired, judge
from rl_serve.gate.measure import Answers, Clock, Opened, time_both
from rl_serve.gate.probe import Probe
from rl_serve.gate.report import Report
from rl_serve.policy import Policy, find_policy, models_cache
from rl_trainer.checkpoint.manifest import MANIFEST, DamagedError, read_manifest
from rl_trainer.rollout.engines.vllm_needs import COMMAND, EngineKind, VllmOptions

TIMEOUT = 1800.0
# `rltrain compare`.
BY_HAND = VllmOptions(asker=COMMAND)


def evaluate(
    candidate: Path | str,
    serving: Path | str | None,
    gate: Gate,
    probe: Probe | None = None,
    *,
    run: Path | None = None,
    code: Path | None = None,
    timeout: float = TIMEOUT,
    device: str = "cpu",
    threads: int = 1,
    engine: EngineKind = "torch",
    vllm: VllmOptions = BY_HAND,
    tell: Callable[[str], None] = lambda text: None,
) -> Report:
    """Whether `candidate` may take the place of `serving`.

    Nothing of either is changed, and nothing is written but downloads. It takes the time of answering all prompts twice,
    and the memory of both models (of three while the agreement is measured).

    Args:
        candidate: a checkpoint (`RUN/checkpoints/step-N`), or whatever else `find_policy` takes.
        serving: what is served now, None: nothing yet, so that only limits without a comparison count.
        gate: what is looked at.
        probe: questions, where the gate has that part.
        run: the run folder, for held-out prompts; None: the one that the candidate lies in.
        code: folder of the run's file, where its data files and environments are looked for first.
        timeout: seconds for all of it; loading a model is not interrupted.
        device: `cpu` or `cuda`.
        threads: CPU threads of this process from now on.
        engine, vllm: see `rl_serve.loading.Serving`.
        tell: hears, about once a second, what is being done.

    Returns:
        The report; a candidate that is damaged or cannot be loaded has failed, with the sentence that says how.

    Raises:
        InvalidConfig, TaskError: the gate asks for what cannot be known here, or vLLM cannot run here.
        CheckpointError, ModelError: the serving policy is damaged or cannot be loaded.
        RewardError: the task's scorer failed, and the run stops on that.
        DeadlineExceeded: it was not done in time.
    """
    clock = Clock(timeout, tell)
    torch.set_num_threads(threads)
    if gate.probe and probe is None:
        raise InvalidConfig("gate.probe: found without a probe set, allowed with a file of questions")
    if gate == Gate():
        raise InvalidConfig("gate: found nothing to look at, allowed: heldOut, probe, latency, agreement")
    try:
        found = find_policy(str(candidate), models_cache(), tell)
        ours = Opened(found, "candidate", device, engine, vllm)
    except (CheckpointError, ModelError) as error:
        return judge(gate, Measured(problem=str(error)))
    theirs = None
    if serving is not None:
        policy = find_policy(str(serving), models_cache(), tell)
        theirs = Opened(policy, "serving policy", device, engine, vllm)
    if not ours.sound:
        return judge(gate, Measured(problem=_no_numbers(ours)))
    return _compare(ours, theirs, gate, probe, run, code, clock)


def _compare(
    ours: Opened,
    theirs: Opened | None,
    gate: Gate,
    probe: Probe | None,
    run: Path | None,
    code: Path | None,
    clock: Clock,
) -> Report:
    both = [one for one in (ours, theirs) if one is not None]
    asked: dict[str, list[Answers]] = {}
    if gate.held_out:
        made_from = {one.who: found for one in both if (found := _metadata(one.policy)) is not None}
        where = run or _run_of(ours.policy)
        heldout = load_heldout(where, gate.held_out.samples, made_from, code)
        asked["held-out"] = [one.answer_heldout(heldout, clock) for one in both]
    if gate.probe and probe is not None:
        asked["probe"] = [one.answer_probe(probe, clock) for one in both]
    if not all(found[0].sound for found in asked.values()):
        return judge(gate, Measured(problem=_no_numbers(ours)))
    latency = agreement = None
    if gate.latency:
        latency = time_both(ours, theirs, clock)
    if gate.agreement:
        prompts = [one for found in asked.values() for one in found[0].prompts]
        agreement = ours.agreement(prompts or ours.plain_prompts(), clock)
    held_out, probed = (_paired(asked.get(name)) for name in ("held-out", "probe"))
    return judge(gate, Measured("", held_out, probed, latency, agreement))


def _paired(found: list[Answers] | None) -> Paired | None:
    """Prompts that both have a score for."""
    if found is None:
        return None
    rows = [row for row in zip(*(answers.right for answers in found), strict=True) if None not in row]
    columns = [[bool(row[one]) for row in rows] for one in range(len(found))]
    return Paired(columns[0], columns[1] if len(columns) > 1 else None)


def _no_numbers(one: Opened) -> str:
    return f"{one.policy.told}: the weights of the {one.who} give probabilities that are no numbers"


def _metadata(policy: Policy) -> Mapping[str, Any] | None:
    """What the manifest of a checkpoint says of how it was made; None: the policy is none, but a plain model."""
    folder = policy.folder.parent
    if not (folder / MANIFEST).is_file():
        return None
    try:
        return read_manifest(folder).metadata
    except DamagedError as error:
        raise CheckpointError(f"{folder}: {error}; take another checkpoint") from None


def _run_of(policy: Policy) -> Path:
    """The run folder: of RUN/checkpoints/step-N/model, or of RUN/final."""
    folder = policy.folder.resolve().parent
    return folder.parent.parent if (folder / MANIFEST).is_file() else folder
