"""A plan of a run as text, and as JSON. Pure."""

from __future__ import annotations

import dataclasses
from typing import Any, Final

from rl_api.base import amount
from rl_api.sizes.layout import as_text
from rl_api.sizes.learner import checkpoint_seconds
from rl_api.sizes.memory import gigabytes, parameters
from rl_api.sizes.run_plan import RolePlan, RunPlan
from rl_api.sizes.sampler import BLOCK
from rl_api.sizes.shared import SharedDevice
from rl_cli.measured import Profile

WORDS: Final = {
    "weights": "weights",
    "gradients": "gradients",
    "moments": "optimizer moments",
    "reference": "KL reference",
    "critic": "critic",
    "gathered": "working copies",
    "activations": "activations",
    "checkpoint": "checkpoint's copy",
    "caches": "keys and values",
    "overhead": "libraries",
}
"""The parts of a device's memory for people."""


def as_lines(plan: RunPlan, bandwidth: int | None, measured: Profile | None = None) -> list[str]:
    """The plan for a terminal; `bandwidth`: bytes/s of the checkpoints' storage, None: not known; so with `measured`."""
    return [
        *_model(plan),
        "",
        *_table(plan),
        "",
        *_cache(plan),
        *_main_memory(plan),
        *_shared(plan),
        *_workers(plan),
        _checkpoint(plan, bandwidth),
        *_step(measured),
        "",
        "who sits with whom:",
        *(f"  {line}" for line in as_text(plan.nodes)),
    ]


def _model(plan: RunPlan) -> list[str]:
    shape = plan.shape
    experts = (
        f", {shape.experts} experts of which a token passes {shape.experts_per_token} "
        f"({parameters(shape.active_parameters)})"
        if shape.experts
        else ""
    )
    return [
        f"model: {shape.family}, {parameters(shape.parameters)} ({shape.parameters:,}){experts}",
        f"       {shape.layers} layers of width {shape.hidden}, {shape.heads} heads over {shape.kv_heads} of keys and "
        f"values, vocabulary {shape.vocab:,}",
    ]


def _table(plan: RunPlan) -> list[str]:
    rows = [["per device", *(role.name for role in plan.roles)]]
    rows += [
        [WORDS[part], *(gigabytes(size) if size else "-" for size in sizes)]
        for part, *sizes in zip(
            WORDS, *([size for _, size in role.parts.items()] for role in plan.roles), strict=True
        )
    ]
    rows.append(["sum", *(total(role) for role in plan.roles)])
    rows.append(["of", *(_of(role) for role in plan.roles)])
    rows.append(["pods", *(_pods(plan, role) for role in plan.roles)])
    rows.append(["devices", *(_devices(plan, role) for role in plan.roles)])
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    lines = [
        "  ".join(
            [
                row[0].ljust(widths[0]),
                *(cell.rjust(width) for cell, width in zip(row[1:], widths[1:], strict=True)),
            ]
        )
        for row in rows
    ]
    rule = "-" * len(lines[0])
    return [lines[0], rule, *lines[1 : len(WORDS) + 1], rule, *lines[len(WORDS) + 1 :]]


def total(role: RolePlan) -> str:
    """What a device of a role holds in all, for people."""
    return gigabytes(role.parts.total) if role.parts.total else "unknown"


def _of(role: RolePlan) -> str:
    device = role.place.device
    if device is None:
        return "unknown"
    if role.cache is not None and role.cache.allowed < device.memory:
        return f"{gigabytes(role.cache.allowed)} of {gigabytes(device.memory)}"
    return gigabytes(device.memory)


def _pods(plan: RunPlan, role: RolePlan) -> str:
    guests = plan.shared.samplers if plan.shared is not None and role.name == "sampler" else 0
    own = role.place.pods - guests
    if not guests:
        return str(own)
    return f"{own}, {guests} in learners'" if own else "in learners'"


def _devices(plan: RunPlan, role: RolePlan) -> str:
    layout = plan.learner_layout
    if role.name == "learner":
        return f"{layout.copies} x {layout.shard}" if layout.shard > 1 else str(role.devices)
    if role.name != "sampler":
        return str(role.devices)
    each = plan.sampler_layout.devices
    return f"{role.place.pods // plan.sampler_layout.pods} x {each}" if each > 1 else str(role.devices)


def _cache(plan: RunPlan) -> list[str]:
    layout = plan.sampler_layout
    if layout.engine == "endpoint":
        return [
            "samplers: a server outside the run holds the model and decodes; what it needs is not planned"
        ]
    role = next((role for role in plan.roles if role.cache is not None), None)
    if role is None or role.cache is None or role.place.device is None:
        return []
    cache = role.cache
    if layout.engine != "vllm" or not role.place.device.accelerator:
        return [
            f"a sampler's keys and values: {layout.sequences} sequences of {layout.length:,} tokens at most"
        ]
    return [
        f"left for keys and values: {gigabytes(max(0, cache.left))} per device: {cache.blocks:,} blocks of {BLOCK} tokens, "
        f"{cache.tokens // layout.length:,} sequences of {layout.length:,} tokens at once"
    ]


def _main_memory(plan: RunPlan) -> list[str]:
    layout = plan.learner_layout
    what = ["optimizer moments", "libraries"] if layout.offload else []
    if layout.copied and plan.roles[0].place.accelerated:
        what.append("a checkpoint's copy, which checkpoint.asynchronous: never saves")
    return [
        f"a {role.name} pod's main memory: {gigabytes(role.main_memory)}{_together(role)} for {_listed(what)}"
        for role in plan.roles
        if role.main_memory
    ]


def _shared(plan: RunPlan) -> list[str]:
    one = plan.shared
    if one is None:
        return []
    other = (
        f"{gigabytes(one.keep)} where both stay (keep), {gigabytes(one.swap)} where one is moved out (swap)"
    )
    moved = f", and {gigabytes(one.moved)} of a learner pod's main memory" if one.moved else ""
    here = f"; here {one.residency}{moved}" if plan.roles[0].place.device is not None else ""
    return [f"a device that learner and sampler share: {other}{here}"]


def _workers(plan: RunPlan) -> list[str]:
    return [
        f"{kind}s beside them: {one.replicas}, each with {'an accelerator, ' if one.accelerators else ''}{one.cpu:g} "
        f"cores and {gigabytes(int(amount(one.memory)))}"
        for kind, one in plan.workers.items()
    ]


def _together(role: RolePlan) -> str:
    """Pods of a run without a profile are on one machine."""
    pods = role.place.pods
    whole = gigabytes(role.main_memory * pods)
    return f" ({whole} of all {pods})" if role.place.sees_folder and pods > 1 else ""


def _listed(words: list[str]) -> str:
    return " and ".join(filter(None, [", ".join(words[:-1]), words[-1]]))


def _checkpoint(plan: RunPlan, bandwidth: int | None) -> str:
    text = f"checkpoint: {gigabytes(plan.checkpoint)}"
    if plan.checkpoints > 1:
        text += f", of which {plan.checkpoints} are kept ({gigabytes(plan.checkpoint * plan.checkpoints)})"
    if bandwidth is not None:
        text += (
            f", written in {checkpoint_seconds(plan.checkpoint, bandwidth):.0f} s at {gigabytes(bandwidth)}/s"
        )
    return text


def _step(measured: Profile | None) -> list[str]:
    if measured is None:
        return []
    step = measured.seconds
    parts = {
        "generating": step.generate,
        "scoring": step.score,
        "training": step.train,
        "publishing": step.publish,
    }
    how = ", sampling beside learning" if step.overlaps else ", one after the other"
    lines = [
        f"a step: {_seconds(step.total)} for {step.tokens:,.0f} tokens of answers: "
        + ", ".join(f"{name} {_seconds(value)}" for name, value in parts.items())
        + how
    ]
    if step.checkpoint is not None:
        lines.append(f"a checkpoint holds training up for {_seconds(step.checkpoint)}")
    return [*lines, f"  scaled from {measured.source}"]


def _seconds(value: float) -> str:
    return f"{value:,.0f} s" if value >= 100 else f"{value:.3g} s"


def as_json(plan: RunPlan, bandwidth: int | None, measured: Profile | None = None) -> dict[str, Any]:
    """The plan for programs; sizes in bytes, times in seconds."""
    shape = plan.shape
    return {
        "model": {
            "family": shape.family,
            "parameters": shape.parameters,
            "activeParameters": shape.active_parameters,
        },
        "roles": {role.name: _role(role) for role in plan.roles},
        "learner": {
            "ranks": plan.learner_layout.ranks,
            "shard": plan.learner_layout.shard,
            "copies": plan.learner_layout.copies,
            "context": plan.learner_layout.context,
        },
        "sampler": dataclasses.asdict(plan.sampler_layout),
        "workers": {
            kind: {
                "replicas": one.replicas,
                "accelerators": one.accelerators,
                "cpu": one.cpu,
                "memory": int(amount(one.memory)),
            }
            for kind, one in plan.workers.items()
        },
        "shared": None if plan.shared is None else _shared_json(plan.shared),
        "checkpoint": {
            "bytes": plan.checkpoint,
            "kept": plan.checkpoints,
            "seconds": None if bandwidth is None else checkpoint_seconds(plan.checkpoint, bandwidth),
        },
        "step": None
        if measured is None
        else dataclasses.asdict(measured.seconds)
        | {
            "total": measured.seconds.total,
            "scaledFrom": measured.source,
            "warnings": list(measured.warnings),
        },
        "nodes": [
            {
                "pool": node.pool,
                "index": node.index,
                "devices": node.devices,
                "seats": [dataclasses.asdict(seat) for seat in node.seats],
            }
            for node in plan.nodes
        ],
        "fits": not plan.misfits,
        "misfits": plan.misfits,
    }


def _shared_json(shared: SharedDevice) -> dict[str, Any]:
    return {
        "samplers": shared.samplers,
        "residency": shared.residency,
        "total": shared.total,
        "keep": shared.keep,
        "swap": shared.swap,
        "mainMemory": shared.moved,
    }


def _role(role: RolePlan) -> dict[str, Any]:
    device, cache = role.place.device, role.cache
    found: dict[str, Any] = {
        "pool": role.place.pool,
        "pods": role.place.pods,
        "devices": role.devices,
        "deviceMemory": None if device is None else device.memory,
        "parts": dict(role.parts.items()) if role.parts.total else None,
        "total": role.parts.total or None,
    }
    if role.main_memory:
        found["mainMemory"] = role.main_memory
    if cache is not None and device is not None:
        found |= {"kvBytes": max(0, cache.left), "kvBlocks": cache.blocks, "kvTokens": cache.tokens}
    return found
