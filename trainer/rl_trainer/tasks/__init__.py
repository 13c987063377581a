"""Tasks: what a model is asked, how its answers are rewarded, and the environments it can act in."""

from rl_trainer.tasks.types import (
    Environment,
    Message,
    Prompt,
    Score,
    Segment,
    StepResult,
    Task,
    load_task,
)

__all__ = ["Environment", "Message", "Prompt", "Score", "Segment", "StepResult", "Task", "load_task"]
