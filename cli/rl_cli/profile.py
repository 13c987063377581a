"""`rltrain profile`: what each part of a run takes on this machine, from a few steps of it."""

from __future__ import annotations

import argparse
import sys
import tempfile
from pathlib import Path
from typing import Final

from rl_api import RLTrainingRun, RunSpec, load_run
from rl_api.base import MOST
from rl_api.errors import InvalidConfig, ModelError
from rl_api.parts import part_groups
from rl_api.planner.profile import (
    PROFILE_FILE,
    RunProfile,
    SwitchProfile,
    load_profile,
    save_profile,
)
from rl_api.sizes.operations import decode_operations, learning_operations
from rl_cli.model_shape import shape_of
from rl_cli.options import Subparsers, add_file_options, new_parser, whole

STEPS: Final = 12
"""The first one is not counted, and decoding, scoring and training are seen some times each."""

_DESCRIPTION: Final = """\
Run a few steps of a run's own file on this machine, or on the Ray cluster at RAY_ADDRESS, and write what each part of the
work takes: a decode step by sequences and cached tokens, prompts, lengths of answers, scoring and tools, a learner's token,
log-probabilities and values, publishing, memory, what it costs to give devices to each other where the run shares them, and,
where it does not, to compute at once and with fewer tokens. From that file placements are planned.

Nothing is kept of the run itself: it trains in a temporary folder, without checkpoints and evaluations. A run of the file
measures the same all the time, and writes it to its own folder."""

_EXAMPLES: Final = """\
  rltrain profile examples/quickstart.yaml
  rltrain profile examples/quickstart.yaml --steps 30 --out quickstart-profile.json
  rltrain profile run.yaml --set warmStart=null --set placement.mode=collocated
"""


def add_parser(subparsers: Subparsers) -> None:
    """Add the command."""
    parser = new_parser(subparsers, "profile", _profile, _DESCRIPTION, _EXAMPLES)
    add_file_options(parser)
    parser.add_argument(
        "--steps",
        type=whole(2, 10_000),
        default=STEPS,
        metavar="N",
        help=f"training steps to run (default: {STEPS}); the first one is not counted",
    )
    parser.add_argument(
        "--out",
        type=Path,
        default=Path(PROFILE_FILE),
        metavar="FILE",
        help=f"file of the profile (default: {PROFILE_FILE})",
    )


def _profile(args: argparse.Namespace) -> int:
    run = as_profiled(load_run(args.file, args.overrides), args.steps)
    if args.out.is_dir() or not args.out.resolve().parent.is_dir():
        raise InvalidConfig(
            f"--out: found {args.out}, allowed: a file in a folder that is there, such as {PROFILE_FILE}"
        )
    from rl_trainer.cli import train_run

    search = Path.cwd() if args.file == "-" else Path(args.file).resolve().parent
    with tempfile.TemporaryDirectory(prefix="rltrain-profile-") as folder:
        train_run(run, Path(folder) / "run", search=search, kept=False, debug=args.debug, try_switches=True)
        found = Path(folder) / "run" / PROFILE_FILE
        if not found.exists():
            raise InvalidConfig(
                f"sampler.engine: found {run.spec.sampler.engine}, which tells nothing of its steps; allowed: an engine of "
                "this process, torch or vllm"
            )
        profile = load_profile(found)
    try:
        save_profile(profile, args.out)
    except OSError as error:
        raise InvalidConfig(f"--out: {args.out} cannot be written ({error.strerror})") from error
    print("\n".join([*lines(profile), *operations(profile, run.spec)]))
    print(f"written to {args.out}", file=sys.stderr)
    return 0


def as_profiled(run: RLTrainingRun, steps: int) -> RLTrainingRun:
    """The run as it is profiled: so many steps, and nothing that is not a part of one.

    Raises InvalidConfig: another trainer runs it.
    """
    if run.spec.trainer.kind != "rltrain":
        raise InvalidConfig(
            f"trainer.kind: found {run.spec.trainer.kind}, allowed with rltrain profile: rltrain, whose steps are measured"
        )
    spec = run.spec
    stop = spec.stop.model_copy(update={"max_steps": steps, "max_duration": None, "target_reward": None})
    evaluation = spec.task.evaluation
    if evaluation is not None:
        # A warm start up to a score needs the held-out prompts.
        needed = spec.warm_start is not None and spec.warm_start.until_score is not None
        evaluation = evaluation.model_copy(update={"every_steps": MOST}) if needed else None
    task = spec.task.model_copy(update={"evaluation": evaluation})
    placement = spec.placement.model_copy(update={"replan": None})  # it is profiled as its file has it
    changes = {"stop": stop, "given_task": task, "checkpoint": None, "placement": placement}
    return run.model_copy(update={"spec": spec.model_copy(update=changes)})


def lines(profile: RunProfile) -> list[str]:
    """What was measured, as a person reads it."""
    decode, learner, limit = profile.decode, profile.learner, profile.limit
    cut = sum(length >= limit for length in profile.lengths) if limit is not None else 0
    fixed = learner.per_pass or 0.0
    rows = [
        ("decode step", f"{_told(decode.base)}, {_told(decode.per_active)} per sequence, "
         f"{_told(1000 * decode.per_cached_token)} per 1,000 cached tokens"),
        ("prompts", "not measured" if profile.prefill_tokens_per_second is None
         else f"{profile.prompt_tokens:,.0f} tokens each, {profile.prefill_tokens_per_second:,.0f} tokens/s"),
        ("answers", f"{profile.mean_length:,.0f} tokens, longest {max(profile.lengths):,}, "
         f"{cut / len(profile.lengths):.0%} cut at the limit"),
        ("scoring", f"{_ms(profile.score_seconds)} per group"),
        ("judging", _at(profile.devices.reward_models, f"{_ms(profile.judge_seconds)} per group", "reward model")),
        ("tools", f"{profile.tool_seconds:.3g} s per answer"),
        ("simulating", _at(profile.devices.simulators, f"{_ms(profile.simulator_seconds)} per answer, which waits "
         f"{_ms(profile.queued_seconds)} for others' turns", "simulator")),
        ("training", f"{_ms(1000 * learner.beta)} per 1,000 tokens of a rank, {_ms(learner.alpha + fixed)} for a part, "
         f"{_ms(learner.all_reduce + learner.optimizer)} for a step"),
        ("log-probs", f"{_ms(1000 * learner.log_prob)} per 1,000 tokens of a rank"),
        ("values", f"{_ms(1000 * learner.value)} per 1,000 tokens of a rank"),
        ("publishing", f"{_ms(profile.publish_seconds)} per version"),
        ("overhead", f"{_ms(profile.overhead_seconds)} for a step"),
        ("at once", f"learner {_slower(learner.contention)}, sampler {_slower(decode.contention)}"),
        ("switches", f"learner {_turn(profile.switch.learner)}, sampler {_turn(profile.switch.sampler)}"),
    ]  # fmt: skip
    return [f"{label:<12}{text}" for label, text in rows]


def operations(profile: RunProfile, spec: RunSpec) -> list[str]:
    """How much actors compute, and of a decode step how much for each byte that it reads: where a device could compute more
    for a byte it waits for its memory, and more sequences at once cost little. Of families that are not known nothing.
    """
    try:
        shape = shape_of(spec.model)
    except ModelError:
        return []
    decode, learner, held = profile.decode, profile.learner, profile.memory.sampler
    sequences = min(decode.slots, max(1.0, profile.answers / profile.devices.sampler))
    cached = sequences * (profile.prompt_tokens + profile.mean_length / 2)
    seconds = decode.base + decode.per_active * sequences + decode.per_cached_token * cached
    done = decode_operations(shape, sequences, cached)
    read = held.weights + held.cache_bytes_per_token * cached
    rows = [
        ("decoding", f"{_rate(done / seconds)} of a sampler with {sequences:.0f} sequences, "
         f"{done / read:.2g} operations for each byte read")
    ] if seconds and read else []  # fmt: skip
    answer, prompt = round(profile.mean_length), round(profile.prompt_tokens)
    group = [answer] * profile.group_size
    trained = learning_operations(spec, shape, group, [prompt + answer] * profile.group_size, prompt)
    per_token = trained / (sum(group) + prompt * profile.group_size)
    parts = profile.prompts_per_step / part_groups(spec)
    fixed = parts * (learner.per_pass or 0.0) * profile.devices.learner / profile.tokens
    rows += [("learning", f"{_rate(per_token / (learner.per_token + fixed))} of a rank")]
    return [f"{label:<12}{text}" for label, text in rows]


def _at(workers: int, seconds: str, kind: str) -> str:
    """What workers of the task take, where there are some."""
    return f"{seconds}, at {workers} {kind}{'s' if workers > 1 else ''}" if workers else "none"


def _rate(operations: float) -> str:
    """Operations per second, as people say them."""
    scale, unit = (1e12, "T") if operations >= 1e12 else (1e9, "G")
    return f"{operations / scale:.3g} {unit}FLOP/s"


def _told(seconds: float) -> str:
    """A coefficient of a fit: what is 0 may be in another one."""
    return _ms(seconds) if seconds else "not told apart"


def _slower(contention: float | None) -> str:
    """By how much work takes longer for each other process that computes at the same time."""
    return f"{contention:.0%} slower for each other process" if contention is not None else "not measured"


def _turn(switch: SwitchProfile) -> str:
    """Of a switch; it counts as 0 in a plan where nobody changed hands."""
    return _ms(switch.turn) if switch.turn else "not measured"


def _ms(seconds: float) -> str:
    return f"{1000 * seconds:.3g} ms"
