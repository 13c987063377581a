"""Which policy a service serves: candidates, the gate, the roll-out, and the way back. Pure.

    candidate ── Evaluating ──> RollingOut ──> Watching ──> promoted
                     │              │              │
                     └─ refused     └──────────────┴──> RollingBack ──> refused, or rolledBack

What was refused or rolled back is never tried again, known by the digest of its manifest. What only took too long says
nothing of the policy: it may be tried again. Whatever is read here is in the service's status: an
operator that is killed at any line goes on where it was.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from typing import Any, Final

from rl_api.service import ServiceSpec
from rl_api.service_status import (
    MOST_PROMOTIONS,
    MOST_REFUSED,
    Baseline,
    Candidate,
    CandidateState,
    PolicyVersion,
    Promotion,
    ServiceStatus,
    Serving,
)
from rl_operator.decide.diagnose import one_line
from rl_operator.decide.verdicts import all_serve, any_serves, asked_so, choose, dies, load_error, worse
from rl_operator.model.decision import Note
from rl_operator.model.service import Control, VersionFigures, Wish
from rl_operator.render.service_config import gate_config, policy_config

EVALUATION: Final = timedelta(minutes=30)
"""How long a candidate may be measured."""

ROLL_OUT: Final = timedelta(minutes=15)
"""How long copies may take to load a policy."""

_SETTLED: Final = timedelta(seconds=5)
"""How long after a roll-out's begin a copy may still speak of the one before."""


@dataclass(frozen=True)
class Second:
    """A second Ray cluster of the service."""

    control: Control | None = None
    """What its control said; None: nothing yet."""
    share: int | None = None
    """Of the requests, in percent, what goes to it; None: that is not shared out."""


@dataclass(frozen=True)
class Promoting:
    """How it goes with the candidate: a value, changed by what is learnt."""

    spec: ServiceSpec
    status: ServiceStatus
    now: datetime
    control: Control | None
    """What the control said; None: nothing that is still true."""
    second: Second | None = None
    """The cluster that is to have the traffic; None: there is but one."""
    tries: bool = True
    """Whether new candidates are tried: else only what becomes of one that copies were told of."""
    notes: tuple[Note, ...] = ()
    wish: Wish | None = None

    @property
    def target(self) -> PolicyVersion | None:
        """The policy that copies are to serve; None: none."""
        candidate = self.status.candidate
        if candidate is None or candidate.state == "Evaluating":
            return self.status.serving
        return candidate.before if candidate.state == "RollingBack" else candidate

    def advanced(self) -> Promoting:
        """After what the control has said."""
        candidate, control = self.status.candidate, self.control
        if control is None:
            return self
        if candidate is None or (candidate.state == "Evaluating" and not self.tries):
            return self._choose(control) if self.tries else self._with(candidate=None)
        if candidate.state == "Evaluating":
            return self._evaluate(candidate, control)
        if candidate.state == "RollingOut":
            return self._roll_out(candidate, control)
        if candidate.state == "RollingBack":
            return self._roll_back(candidate, control)
        return self._watch(candidate, control)

    # -- the states ----------------------------------------------------------------------------------------------

    def _choose(self, control: Control) -> Promoting:
        """The next candidate, if there is one."""
        chosen = choose(self.spec, self.status, control.checkpoints)
        if chosen is None:
            return self
        before = self.status.serving
        candidate = Candidate(
            **_version(chosen),
            state="Evaluating",
            since=self.now,
            message="it is measured by the gate",
            before=PolicyVersion(**_version(before)) if before is not None else None,
        )
        started = self._with(candidate=candidate)
        return started._evaluate(candidate, control)

    def _evaluate(self, candidate: Candidate, control: Control) -> Promoting:
        gate = gate_config(self.spec.promotion.gate)
        if self.spec.source.run is None:
            gate.pop("heldOut", None)
        if not gate:
            return self._begin(candidate, control, "there is no gate")
        found = asked_so(control.evaluations.get(candidate.digest), candidate.before, gate)
        if found is not None and found.state == "passed":
            return self._begin(candidate, control, found.message)
        again = found is not None and found.state == "error" and found.retryable
        if found is not None and found.state in ("failed", "error") and not again:
            return self._ended(candidate, "refused", found.message or "it did not pass the gate")
        why = found.message if found is not None and again else ""
        if again and self._is_over(candidate, control):
            text = one_line(f"{candidate.version}: it could not be measured, and others may come: {why}", 500)
            return self._with(candidate=None)._noted(Note("Warning", "NotMeasured", text))
        if self._spent(candidate) > EVALUATION:
            late = f"it was not measured within {_minutes(EVALUATION)}"
            return self._ended(candidate, "refused", f"{late}: {why}" if why else late, for_good=False)
        told = self
        if found is not None:
            text = f"it could not be measured yet, and is tried again: {why}" if why else found.message
            update = {"message": one_line(text, 500) or candidate.message}
            told = self._with(candidate=candidate.model_copy(update=update))
        if found is None or again:
            body = {
                "candidate": policy_config(candidate),
                "serving": policy_config(candidate.before),
                "gate": gate,
            }
            told = replace(told, wish=Wish("evaluate", body, control.cluster))
        return told

    def _begin(self, candidate: Candidate, control: Control, why: str) -> Promoting:
        """Let copies load the candidate."""
        serving, baseline = self.status.serving, None
        if serving is not None:
            before = control.versions.get(serving.version, VersionFigures())
            baseline = Baseline(
                requests=before.requests,
                errors=before.errors,
                token_seconds=before.token_seconds,
                probe=before.probe if before.probe is not None else serving.probe,
            )
        return self._state(candidate, "RollingOut", one_line(why, 500), baseline=baseline)

    def _roll_out(self, candidate: Candidate, control: Control) -> Promoting:
        if all_serve(control, candidate.version):
            return self._serves(candidate)
        wanted = self.spec.promotion.step
        if self._in_steps and wanted is not None and wanted != candidate.step:
            return self._back(candidate, f"step {wanted} is wanted instead", for_good=False)
        if self._in_steps and self.second is not None and self.second.control is not None:
            if all_serve(self.second.control, candidate.version):
                return self._shared(candidate, control, self.second.control)
            control = self.second.control
        failed = load_error(control, verdicts=True)
        if failed and self._spent(candidate) > _SETTLED and control.time - self._since(candidate) > _SETTLED:
            return self._back(candidate, f"a copy cannot load it: {failed}")
        if candidate.before is not None:
            figures = control.versions.get(candidate.version, VersionFigures())
            if any_serves(control, candidate.version) and (
                why := worse(self.spec, candidate.baseline, figures)
            ):
                return self._back(candidate, why)
            if why := dies(control, candidate):
                return self._back(candidate, why, self._went_back(candidate))
        # With some of the traffic its figures decide: KubeRay waits for copies that are made anew.
        shares = self.second is not None and bool(self.second.share)
        # Without one to go back to, or without a copy that could have loaded it, there is nothing to be gained.
        waits = shares or candidate.before is None or not control.replicas
        if self._spent(candidate) > ROLL_OUT and not waits:
            why = f"copies did not load it within {_minutes(ROLL_OUT)}"
            error = load_error(control)
            return self._back(candidate, f"{why}: {error}" if error else why, for_good=False)
        return self

    def _shared(self, candidate: Candidate, control: Control, second: Control) -> Promoting:
        """Some of the requests go to the candidate, the others to the one before: they are compared all the time."""
        figures, before = second.versions.get(candidate.version, VersionFigures()), candidate.before
        baseline = candidate.baseline or Baseline()
        if before is not None and (now := control.versions.get(before.version)) is not None and now.requests:
            times = now.token_seconds or baseline.token_seconds
            update = {"requests": now.requests, "errors": now.errors, "token_seconds": times}
            baseline = baseline.model_copy(update=update)
        if why := worse(self.spec, baseline, figures):
            return self._back(candidate, why)
        if self._probes and figures.probe is None:
            return replace(self, wish=Wish("probe", {"version": candidate.version}, second.cluster))
        return self

    def _serves(self, candidate: Candidate) -> Promoting:
        """All copies serve the candidate: it is promoted, until it is taken back."""
        serving = Serving(**_version(candidate), since=self.now)
        text = f"{candidate.version} serves"
        if candidate.before is not None:
            text += f" instead of {candidate.before.version}"
        promoted = self._listed(candidate, "promoted", candidate.message)
        first = self.status.first or candidate.version
        promoted = promoted._with(serving=serving, first=first)._noted(
            Note("Normal", "Promoted", f"{text}: {candidate.message}")
        )
        window = self.spec.promotion.rollback.window.seconds
        if not window or (candidate.before is None and not self._probes):
            return promoted._with(candidate=None)
        return promoted._state(
            candidate, "Watching", f"it is watched for {self.spec.promotion.rollback.window}"
        )

    def _watch(self, candidate: Candidate, control: Control) -> Promoting:
        figures = control.versions.get(candidate.version, VersionFigures())
        why = worse(self.spec, candidate.baseline, figures)
        dead = dies(control, candidate)
        if why or dead:
            if candidate.before is None:
                return self._with(candidate=None)
            return self._back(candidate, why or dead, bool(why) or self._went_back(candidate))
        watched = self
        if figures.probe is not None and self.status.serving is not None:
            watched = self._with(serving=self.status.serving.model_copy(update={"probe": figures.probe}))
        window, spent = timedelta(seconds=self.spec.promotion.rollback.window.seconds), self._spent(candidate)
        # While copies are made anew, nothing is known of them; where that takes too long, it is no reason to wait.
        over = spent >= window and (all_serve(control, candidate.version) or spent > window + ROLL_OUT)
        if self._probes and figures.probe is None and all_serve(control, candidate.version):
            watched = replace(watched, wish=Wish("probe", {"version": candidate.version}, control.cluster))
            over = over and spent > EVALUATION
        return watched._with(candidate=None) if over else watched

    def _roll_back(self, candidate: Candidate, control: Control) -> Promoting:
        before = candidate.before
        there = (
            all_serve(control, before.version)
            if before is not None
            else not any_serves(control, candidate.version)
        )
        if not there or (self._in_steps and self.second is not None):
            return self._stuck(candidate, control) if self._spent(candidate) > ROLL_OUT else self
        had_it = self.status.serving is not None and self.status.serving.digest == candidate.digest
        had_some = had_it or self._in_steps
        for_good = candidate.digest in self.status.refused
        ended = self._ended(candidate, "rolledBack" if had_some else "refused", candidate.message, for_good)
        if had_it:
            ended = ended._with(
                serving=Serving(**_version(before), since=self.now) if before is not None else None
            )
        return ended

    def _stuck(self, candidate: Candidate, control: Control) -> Promoting:
        """The way back does not end: copies go on trying, and other candidates may come."""
        before = candidate.before.version if candidate.before is not None else "no policy"
        why = f"it was to go back to {before}, which took more than {_minutes(ROLL_OUT)}"
        error = load_error(control)
        text = one_line(f"{why}: {error}" if error else why, 500)
        left = self._listed(candidate, "stuck", text)._with(candidate=None)
        if candidate.before is not None:  # copies go on trying
            left = left._with(serving=Serving(**_version(candidate.before), since=self.now))
        return left._noted(Note("Warning", "RollBackStuck", f"{candidate.version}: {text}"))

    # -- steps of theirs -----------------------------------------------------------------------------------------

    @property
    def _probes(self) -> bool:
        return self.spec.promotion.gate.probe is not None and self.spec.promotion.rollback.probe

    @property
    def _in_steps(self) -> bool:
        return self.spec.promotion.strategy == "incremental"

    @property
    def hurried(self) -> bool:
        """Whether the traffic moves at once: back to a policy that was better."""
        candidate = self.status.candidate
        return candidate is not None and candidate.state == "RollingBack"

    @property
    def first(self) -> bool:
        """Whether the target takes the cluster that came up without a policy: the first one that serves does."""
        target, first = self.target, self.status.first
        return target is None or first is None or first == target.version

    def _back(self, candidate: Candidate, why: str, for_good: bool = True) -> Promoting:
        """Let copies load the one before again; `for_good`: the candidate is not tried again."""
        text = one_line(why, 500)
        back = self._state(candidate, "RollingBack", text)
        back = back._refuse(candidate) if for_good else back
        to = f"to {candidate.before.version}" if candidate.before is not None else "to no policy"
        return back._noted(Note("Warning", "RollingBack", f"{candidate.version} goes back {to}: {text}"))

    def _ended(self, candidate: Candidate, result: Any, why: str, for_good: bool = True) -> Promoting:
        """The candidate is none any more, and with `for_good` never will be again."""
        text = one_line(why, 500)
        reason = {"refused": "Refused", "rolledBack": "RolledBack"}[result]
        left = self._refuse(candidate) if for_good else self
        ended = left._listed(candidate, result, text)._with(candidate=None)
        return ended._noted(Note("Warning", reason, f"{candidate.version}: {text}"))

    def _is_over(self, candidate: Candidate, control: Control) -> bool:
        """Whether it makes room for another one: a newer one is there, or it is not there any more."""
        newest = choose(self.spec, self.status, control.checkpoints)
        return newest is None or newest.digest != candidate.digest

    def _went_back(self, candidate: Candidate) -> bool:
        """Whether it was taken back before."""
        return any(
            one.digest == candidate.digest and one.result != "promoted" for one in self.status.promotions
        )

    def _refuse(self, candidate: Candidate) -> Promoting:
        known = [one for one in self.status.refused if one != candidate.digest]
        return self._with(refused=[*known, candidate.digest][-MOST_REFUSED:])

    def _listed(self, candidate: Candidate, result: Any, why: str) -> Promoting:
        entry = Promotion(
            version=candidate.version,
            step=candidate.step,
            digest=candidate.digest,
            time=self.now,
            result=result,
            message=why,
        )
        known = self.status.promotions
        if known and (known[-1].digest, known[-1].result) == (entry.digest, entry.result):
            known = known[:-1]  # it has come to the same again
        return self._with(promotions=[*known, entry][-MOST_PROMOTIONS:])

    def _state(self, candidate: Candidate, state: CandidateState, message: str, **more: Any) -> Promoting:
        fields = {"state": state, "since": self.now, "message": message, **more}
        return self._with(candidate=candidate.model_copy(update=fields))

    def _with(self, **fields: Any) -> Promoting:
        return replace(self, status=self.status.model_copy(update=fields))

    def _noted(self, note: Note) -> Promoting:
        return replace(self, notes=(*self.notes, note))

    def _since(self, candidate: Candidate) -> datetime:
        return candidate.since or self.now

    def _spent(self, candidate: Candidate) -> timedelta:
        return self.now - self._since(candidate)


def _minutes(length: timedelta) -> str:
    return f"{length.total_seconds() / 60:.0f} minutes"


def _version(policy: PolicyVersion) -> dict[str, Any]:
    return {name: getattr(policy, name) for name in PolicyVersion.model_fields}
