"""Conditions of a run: set, cleared, compared. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from datetime import datetime
from typing import Final, Literal

from rl_api.progress import Condition
from rl_operator.model.decision import Note

ORDER: Final = (
    *("Accepted", "Admitted", "SourceFound", "ClusterReady", "Training", "Serving", "Promoting"),
    *("Suspended", "Succeeded", "Failed"),
)
"""All conditions of runs and services, in the order in which they are shown."""

QUIET: Final = frozenset(
    {"Starting", "Retrying", "Suspended", "Finished", "Stopping", "Queued", "NamespaceLimit"}
)
"""Reasons of ClusterReady that are the normal course of things and no event."""

_ADMISSION: Final = frozenset({"Evicted", "SuspendedByOthers"})
"""Reasons of Admitted that people want to know; ClusterReady repeats them."""

State = Literal["True", "False", "Unknown"]


@dataclass(frozen=True)
class Conditions:
    """The conditions of one run: a value."""

    old: Mapping[str, Condition]
    """As they were last written, by type."""
    generation: int
    now: datetime
    changed: Mapping[str, Condition | None] = field(default_factory=dict)
    """What became of some; None: taken away."""

    def get(self, kind: str) -> Condition | None:
        """The condition of this type as it stands."""
        return {**self.old, **self.changed}.get(kind)

    def holds(self, kind: str) -> bool:
        """Whether the condition is True."""
        condition = self.get(kind)
        return condition is not None and condition.status == "True"

    def since(self, kind: str, status: State) -> datetime | None:
        """Since when the condition has this status; None: it has another."""
        condition = self.get(kind)
        return condition.last_transition_time if condition and condition.status == status else None

    def set(self, kind: str, status: State, reason: str, message: str = "") -> Conditions:
        """With this condition; its time stays while its status does."""
        old = self.old.get(kind)
        since = old.last_transition_time if old is not None and old.status == status else None
        condition = Condition(
            type=kind,
            status=status,
            reason=reason,
            message=message,
            last_transition_time=since or self.now,
            observed_generation=self.generation,
        )
        return replace(self, changed={**self.changed, kind: condition})

    def clear(self, kind: str) -> Conditions:
        """Without this condition."""
        return replace(self, changed={**self.changed, kind: None})

    def all(self) -> list[Condition]:
        """All conditions, in their order."""
        found = [condition for condition in {**self.old, **self.changed}.values() if condition is not None]
        return sorted(found, key=lambda one: ORDER.index(one.type) if one.type in ORDER else len(ORDER))

    def notes(self) -> list[Note]:
        """One event for each condition that changed in a way that people want to know."""
        return [note for condition in self.all() if (note := self._note(condition)) is not None]

    def _note(self, new: Condition) -> Note | None:
        old = self.old.get(new.type)
        if old is not None and (old.status, old.reason) == (new.status, new.reason):
            return None
        if new.status == "False":
            told = {
                "Accepted": True,
                "SourceFound": True,
                "Serving": new.reason not in QUIET,
                "Admitted": new.reason in _ADMISSION,
                "ClusterReady": new.reason not in QUIET | _ADMISSION,
            }
            return Note("Warning", new.reason, new.message) if told.get(new.type) else None
        # That a run is accepted shows in what follows, and what becomes of a candidate is an event of its own.
        if (
            new.status != "True"
            or new.type in ("Accepted", "SourceFound", "Promoting")
            or (old is not None and old.status == "True")
        ):
            return None
        return Note("Warning" if new.type == "Failed" else "Normal", new.type, new.message)
