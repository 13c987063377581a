"""Tasks: what a model is asked, how its answers are rewarded, and the environments it can act in."""

from rl_trainer.tasks.loading import Task, load_task
from rl_trainer.tasks.types import Answer, Message, Prompt, Score, Segment, StepResult

__all__ = ["Answer", "Message", "Prompt", "Score", "Segment", "StepResult", "Task", "load_task"]
