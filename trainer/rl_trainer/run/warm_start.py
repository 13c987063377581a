"""Supervised warm start on the task's own solutions, for models without any skill."""

from __future__ import annotations

import itertools

import numpy as np

from rl_api.errors import TaskError
from rl_trainer.model.chat import Chat
from rl_trainer.run.evaluation import exact_share
from rl_trainer.run.session import Session
from rl_trainer.tasks import Prompt, Task
from rl_trainer.trajectory import Trajectory

# Far from every prompt that reinforcement learning will see of an endless task.
FIRST_INDEX = 1_000_000_000
SCORE_EVERY = 2
# Where more than that many prompts are too long for one batch, there may be none that is not.
MOST_LEFT_OUT = 1000


def warm_start(session: Session) -> None:
    """Trains on solutions for `warmStart.maxSteps` steps, or until `untilScore` is reached."""
    spec = session.spec.warm_start
    if spec is None:
        return
    session.console.phase("warm start")
    session.show_phase("WarmStart")
    for step in range(1, spec.max_steps + 1):
        first = FIRST_INDEX + (step - 1) * spec.batch_size
        samples = [
            solution_sample(session.inputs.task, prompt, session.inputs.chat)
            for prompt in _prompts(session, first, spec.batch_size)
        ]
        loss = session.actors.learners.supervise(samples, spec.learning_rate)
        last = step == spec.max_steps
        score: float | None = None
        if spec.until_score is not None and (step % SCORE_EVERY == 0 or last):
            score = exact_share(session.actors.sampled_answers(session.inputs.heldout, -1 - step))
        session.console.warm_start(step, spec.max_steps, loss, score)
        session.recorder.metrics.event("warm_start", step=0, warm_start_step=step, loss=loss, score=score)
        if spec.until_score is not None and score is not None and score >= spec.until_score:
            return


def _prompts(session: Session, first: int, count: int) -> list[Prompt]:
    """So many prompts from index `first` on, without those that do not fit into the model's context."""
    task, screen = session.inputs.task, session.inputs.screen
    places = range(first, first + count + MOST_LEFT_OUT)
    fitting = (prompt for index in places if screen.fits(prompt := task.prompt(index)))
    found = list(itertools.islice(fitting, count))
    if len(found) < count:
        raise TaskError(
            f"warmStart: {MOST_LEFT_OUT} of {len(places):,} prompts or more do not fit into the model's context; shorten "
            "them, or take a model with a longer one"
        )
    return found


def solution_sample(task: Task, prompt: Prompt, chat: Chat) -> Trajectory:
    """The tokens of a solved prompt; what the model itself must write is marked as trained.

    The token that ends a turn follows every trained segment: the model ends its turn there.
    """
    environment = task.environment(prompt)
    opening = environment.reset() if environment else prompt.content
    tokens = chat.prompt(opening)
    sampled = [False] * len(tokens)
    for segment in task.solution(prompt):
        if segment.trained:
            ids = [*chat.tokenizer.encode(segment.text, special_tokens=False), chat.end_of_turn]
        else:
            ids = chat.observation(segment.text, tokens[-1])
        tokens.extend(ids)
        sampled.extend([segment.trained] * len(ids))
    count = sum(sampled)
    return Trajectory(
        np.asarray(tokens, dtype=np.int32),
        np.asarray(sampled, dtype=np.bool_),
        np.zeros(count, dtype=np.float32),
        np.zeros(count, dtype=np.int32),
    )
