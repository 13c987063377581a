"""What the operator remembers of a run between two looks at it."""

from __future__ import annotations

from dataclasses import dataclass, field

from rl_operator.model.decision import Decision
from rl_operator.model.seen import Ask, Reading, World
from rl_operator.plan.effective import Plan


@dataclass
class Memory:
    """What is known of a run besides what the API server holds. Losing it costs a few requests, nothing else."""

    uid: str
    token: str | None = None
    reading: Reading | None = None
    reading_error: str = ""
    ask: Ask | None = None
    refusal: str = ""
    scale_refusal: str = ""
    scale_again: float = 0.0
    made: bool = False
    """Whether the first objects were made; before that a run is urgent."""
    untold: tuple[World, Decision] | None = None
    """What was done, and is not in the status yet."""
    unreadable: str = ""
    """Why nothing is done with the run."""
    failures: int = 0
    labels: dict[str, str] | None = None
    """Labels of the run's namespace; None: no profile goes by them."""
    plan_of: object = None
    plan: Plan | None = None
    logs: dict[tuple[str, int], str] = field(default_factory=dict)
