"""A checkpoint that learners have copied and are writing, as the driver sees it."""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Sequence
from dataclasses import replace

from rl_api.errors import CheckpointError, DeadlineExceeded
from rl_trainer.checkpoint.state import SavedFiles
from rl_trainer.error_text import RESUME_HINT
from rl_trainer.learner.results import Written

# For the next bytes of what learners write: below a hung collective's own limit.
ROUND_TIMEOUT = 300.0
# Between two looks at what learners write in the background.
LOOK_SECONDS = 0.1


class LearnersWriting:
    """What learners have copied and are writing; see `state.Unfinished`, also for `refused`.

    `names`: of all files that they write or send.
    """

    def __init__(
        self,
        files: SavedFiles,
        names: Collection[str],
        look: Callable[[], Sequence[Written]],
        drop: Callable[[], None],
        refused: str = "",
        told: Callable[[], Sequence[Written] | None] | None = None,
    ) -> None:
        self._files, self._look, self._drop, self.refused = files, look, drop, refused
        self._told = told
        self._names = {*names, *files.weight_map.values()}

    def finished(self) -> SavedFiles | None:
        """See `state.Unfinished`. While learners update, too, where they tell when they are done."""
        found = self._look() if self._told is None else self._told()
        return None if found is None else self._all_of(found)

    def drop(self) -> None:
        """See `state.Unfinished`."""
        self._drop()

    def wait(self) -> SavedFiles:
        """See `state.Unfinished`."""
        done, moved = -1, time.monotonic()
        while (files := self._all_of(found := self._look())) is None:
            now = sum(one.done for one in found)
            if now != done:
                done, moved = now, time.monotonic()
            elif time.monotonic() - moved > ROUND_TIMEOUT:
                raise DeadlineExceeded(
                    f"learners: nothing of a checkpoint was written for {ROUND_TIMEOUT:.0f} s; look at the disk or volume "
                    f"that it goes to, then {RESUME_HINT}"
                )
            time.sleep(LOOK_SECONDS)
        return files

    def _all_of(self, found: Sequence[Written]) -> SavedFiles | None:
        """All files, where every rank has written its own; None: one has not."""
        digests = dict(self._files.digests)
        for one in found:
            if one.digests is None:
                return None
            digests |= one.digests
        self._drop()
        if missing := sorted(self._names - digests.keys()):
            raise CheckpointError(f"{missing[0]}: no learner has written it")
        return replace(self._files, digests=digests)
