"""Tasks: what a model is asked, how its answers are rewarded, and the environments it can act in."""

from rl_trainer.tasks.loading import load_task
from rl_trainer.tasks.types import (
    Answer,
    Environment,
    Message,
    Prompt,
    Score,
    Segment,
    StepResult,
    Task,
)

__all__ = [
    "Answer",
    "Environment",
    "Message",
    "Prompt",
    "Score",
    "Segment",
    "StepResult",
    "Task",
    "load_task",
]
