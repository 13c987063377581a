"""The training loop: generate, score, advantage, update, evaluate, publish.

Synchronous and asynchronous training are this same loop; `buffer.maxStaleness` decides how far the samplers may run ahead
(`rl_trainer.buffer.admission`). They generate and score all the time, as far as the buffer admits them.
"""

from __future__ import annotations

from typing import Any

from rl_api import RLTrainingRun
from rl_trainer.algorithms.batch_advantages import batch_advantages
from rl_trainer.error_text import RESUME_HINT
from rl_trainer.observe.console import Console
from rl_trainer.run.run_folder import RunFolder
from rl_trainer.run.session import Session
from rl_trainer.run.stopping import StopRequest
from rl_trainer.run.warm_start import warm_start


def train(
    run: RLTrainingRun,
    folder: RunFolder,
    console: Console,
    stop: StopRequest,
    **options: bool,
) -> dict[str, Any]:
    """Trains until `spec.stop` is reached; returns the summary. `options`: see `Session`.

    Raises:
        PlacementChanged: a checkpoint was written to go on from with another placement.
        Interrupted: `stop` was requested; a checkpoint was written.
        RLTrainError: anything else that ends the run; what was checkpointed can be resumed.
    """
    with Session(run, folder, console, **options) as session:
        if not session.resumed:
            warm_start(session)
            session.begin()
        session.begin_sampling()
        stop.begin(console.message)

        reason = session.stop_reason()
        while reason is None and not stop.requested:
            for part in session.parts():
                advantages, rewards = batch_advantages(run.spec, part.groups, *session.token_estimates(part))
                session.learn(part, advantages, rewards)
            session.update()
            session.evaluate_if_due()
            session.finish_step()
            session.counters.check_divergence()
            session.checkpoint_if_due()
            reason = session.stop_reason()

        session.checkpoint()
        if reason is None:
            raise stop.interrupted(
                f"stopped at step {session.counters.step} of {run.spec.stop.max_steps}, checkpoint written; {RESUME_HINT}"
            )
        return session.finish(reason)
