"""A run that is given another placement, as its driver wants it: a checkpoint, then the next attempt has it. Pure.

`status.placement.next` is written before anything goes, with the attempt that ends for it: an operator that dies between
two steps goes on where it was. A run that cannot be saved, or may not have what the other placement takes, keeps its own.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Final

from rl_api.base import amount
from rl_api.placement_status import KeptPlacement, PlacementStatus, PlannedPlacement, WantedPlacement
from rl_api.progress import Attempt
from rl_operator.decide.attempt.ending import end_attempt
from rl_operator.decide.attempt.evicting import pending
from rl_operator.decide.attempt.outcome import REPLANNED, Outcome
from rl_operator.decide.attempt.stopping import Wait, ready_to_stop, stuck, wishing
from rl_operator.decide.look import QUICK, Look, removal
from rl_operator.decide.room import no_room
from rl_operator.model.decision import Decision, Note
from rl_operator.model.seen import Ray
from rl_operator.plan.effective import Effective, placed_as
from rl_operator.plan.planned import placement_digest
from rl_operator.plan.refused import Refused

_CALLED_OFF: Final = "no checkpoint was written for it"
"""How it begins why a placement is not tried again in an attempt."""


def is_ending(look: Look, attempt: Attempt) -> bool:
    """Whether this attempt is to end, so that the next one has the placement that was planned, and its pods are gone as far
    as its queue goes."""
    eviction = pending(look, attempt)
    return _ending(look, attempt) is not None and (eviction is None or eviction.released_time is not None)


def _ending(look: Look, attempt: Attempt) -> KeptPlacement | None:
    planned = look.status.placement.next if look.status.placement is not None else None
    return planned if planned is not None and planned.attempt == attempt.number else None


def replan(look: Look, attempt: Attempt, ray: Ray) -> Decision | Look:
    """What is to be done where the run is given another placement; the look where its attempt goes on as it is."""
    planned = _ending(look, attempt)
    if planned is not None:
        return _stop(look, attempt, ray, planned)
    wanted, effective = _wanted(look, attempt), look.effective
    if wanted is None or effective is None or effective.spec.placement.replan is None or ray.deleting:
        return look
    why = refused(look, attempt, ray, effective, wanted)
    if why is not None:
        return _refusing(look, wanted, why)
    before = effective.planned
    planned = KeptPlacement(
        **wanted.model_dump(exclude={"refused"}),
        attempt=attempt.number,
        time=look.now,
        instead_of=before.instead_of if before is not None else placement_digest(effective.spec.placement),
    )
    look = _with(look, next=planned).note(Note("Normal", REPLANNED, _sentence(look, planned)))
    # It is written down before anything goes: that the RayJob is gone would be taken for a failure.
    return wishing(look.answering(ray), attempt).decide("Stopping", 0.0)


def _wanted(look: Look, attempt: Attempt) -> WantedPlacement | None:
    """What the attempt's driver wants as it said last, and not an earlier one's, nor what is only in the status."""
    reading, shown = look.world.said(attempt.number), look.status.placement
    if reading is None or reading.progress.placement is None or shown is None:
        return None
    return shown.wanted if reading.progress.placement.wanted is not None else None


def refused(
    look: Look, attempt: Attempt, ray: Ray, effective: Effective, wanted: WantedPlacement
) -> str | None:
    """Why the run keeps its placement, in one sentence; None: it is given the one that is wanted."""
    if wanted.refused.startswith(_CALLED_OFF):
        return wanted.refused
    if ray.kind == "RayCluster":
        return "a cluster to work on by hand keeps its pods"
    if attempt.spec_hash != effective.digest:
        return f"the run's spec or its profile's defaults have changed since attempt {attempt.number} began"
    if effective.spec.checkpoint is None:
        return "spec.checkpoint is null, and the run would begin anew"
    found = placed_as(look.world.run, effective, wanted)
    if isinstance(found, Refused):
        return found.message
    if placement_digest(found.spec.placement) == placement_digest(effective.spec.placement):
        return "the run has it"
    if effective.queue is not None and (more := _more(effective, found)):
        return f"queue {effective.queue} has admitted the run with {more}"
    crowded = no_room(found, look.world.others)
    return crowded.message if crowded is not None else None


def _more(now: Effective, then: Effective) -> str:
    """Of what a run would take more than it has; empty: of nothing."""
    for what in ("accelerators", "cpu", "memory"):
        has, would = (
            sum(amount(str(getattr(role, what))) * role.at_start for role in one.roles) for one in (now, then)
        )
        if would > has:
            unit, size = ("Gi", 2**30) if what == "memory" else ("", 1)
            return (
                f"{float(has / size):.6g}{unit} of {what}, and it would take {float(would / size):.6g}{unit}"
            )
    return ""


def _stop(look: Look, attempt: Attempt, ray: Ray, planned: KeptPlacement) -> Decision | Look:
    """A checkpoint, then the RayJob goes."""
    since, why = planned.time or look.now, _sentence(look, planned)
    if not ray.deleting:
        known = look.old.checkpoint_request is not None
        look = wishing(look.answering(ray), attempt)
        ready = ready_to_stop(look, attempt, ray, since, known=known)
        if isinstance(ready, Wait):
            return replace(look.decide("Stopping", QUICK, ask=ready.ask), pull=look.pull(ray))
        if ready.checkpoint != "written":
            return _called_off(look, ready.sentence)
    look = look.set("Training", "False", REPLANNED, why)
    waits = ""
    if ray.deleting and stuck(look, since):
        waits = "; waiting for KubeRay to remove the RayJob: is the KubeRay operator running?"
    look = look.set("ClusterReady", "False", "Stopping", f"{why}; the pods are being stopped{waits}")
    return look.decide("Stopping", QUICK, delete=removal(ray))


def _called_off(look: Look, why: str) -> Look:
    """The attempt goes on as it is."""
    placement = look.status.placement
    assert placement is not None, "it says what was planned"
    look = _with(look, next=None).showing(checkpoint_request=None)
    if placement.wanted is None:
        return look
    return _refusing(look, placement.wanted, f"{_CALLED_OFF}: {why}")


def close_replanned(look: Look, attempt: Attempt) -> Decision:
    """The RayJob of an attempt that ends for another placement is gone: so are the pods, or they are waited for."""
    planned = _ending(look, attempt)
    assert planned is not None, "it ends for that"
    sentence = _sentence(look, planned)
    if look.world.pods_of(attempt.number) and not stuck(look, planned.time or look.now):
        stops = f"{sentence}; the pods are being stopped"
        return look.set("ClusterReady", "False", "Stopping", stops).decide("Stopping", QUICK)
    look = end_attempt(look, Outcome(REPLANNED, sentence)).at_rest()
    look = look.set("Training", "False", REPLANNED, sentence)
    return look.set("ClusterReady", "False", REPLANNED, sentence).decide("Pending", 0.0)


def _refusing(look: Look, wanted: WantedPlacement, why: str) -> Look:
    """With the reason, which is told once."""
    if wanted.refused != why:
        look = look.note(Note("Normal", "ReplanRefused", f"placement {words(wanted)} is not given: {why}"))
    return _with(look, wanted=wanted.model_copy(update={"refused": why}))


def _with(look: Look, **fields: object) -> Look:
    placement = look.status.placement
    assert placement is not None, "it says what is wanted"
    return look.showing(placement=placement.model_copy(update=fields))


def _sentence(look: Look, planned: KeptPlacement) -> str:
    """From what to what, and why."""
    placement = look.status.placement
    before = f"from placement {shown_words(placement)} " if placement is not None else ""
    why = f": {planned.reason}" if planned.reason else ""
    return f"{before}to {words(planned)}{why}"


def words(placement: PlannedPlacement) -> str:
    """For people."""
    return _words(placement.mode, placement.shared_samplers, placement.part_groups, placement.hand_over_at)


def shown_words(placement: PlacementStatus) -> str:
    """The same of what the run has."""
    return _words(placement.mode, placement.shared, placement.part_groups)


def _words(mode: str, shared: int, part: int | None, hand_over_at: float | None = None) -> str:
    parts = [f"sharedSamplers {shared}"] if mode == "hybrid" else []
    parts += [f"hand-over at {hand_over_at:.0%}"] if hand_over_at is not None else []
    parts += [f"parts of {part} groups"] if part is not None else []
    return f"{mode} ({', '.join(parts)})" if parts else mode
