"""TensorBoard event files without TensorFlow or torch: scalars framed by TensorBoard's own record writer."""

from __future__ import annotations

import math
import os
import socket
import time
from collections.abc import Mapping
from pathlib import Path

_NAME = "events.out.tfevents."


class EventWriter:
    """Writes one event file into a folder; TensorBoard shows all files of the folder as one set of curves.

    Attributes:
        is_empty: whether the folder holds no point yet.
    """

    def __init__(self, folder: Path) -> None:
        # Half a second of imports that readers of this package need not pay. Not its EventFileWriter:
        # that one loads TensorFlow where it is installed, and writes from a thread.
        from tensorboard.compat.proto import event_pb2, summary_pb2  # type: ignore[import-untyped, unused-ignore]
        from tensorboard.summary.writer.record_writer import (  # type: ignore[import-untyped, unused-ignore]
            RecordWriter,
        )

        self._event, self._session, self._summary = event_pb2.Event, event_pb2.SessionLog, summary_pb2.Summary
        folder.mkdir(parents=True, exist_ok=True)
        # The reader takes files in the order of their names, which begin with seconds: ours comes after all that are
        # there, also after those of the same second, and of a node whose clock is ahead.
        earlier = [_seconds(path) for path in folder.glob(f"{_NAME}*")]
        self.is_empty = not earlier
        seconds = max([int(time.time()), *(each + 1 for each in earlier)])
        self._file = (folder / f"{_NAME}{seconds:010d}.{socket.gethostname()}.{os.getpid()}").open("xb")
        self._records = RecordWriter(self._file)
        self._write(self._event(wall_time=time.time(), file_version="brain.Event:2"))

    def scalars(self, step: int, when: float, values: Mapping[str, float | int | None]) -> None:
        """Append one point per tag at `step`, `when` in seconds since the epoch; no number, no point."""
        points = [
            self._summary.Value(tag=tag, simple_value=float(value))
            for tag, value in values.items()
            if value is not None and math.isfinite(value)
        ]
        if points:
            self.is_empty = False
            self._write(self._event(wall_time=when, step=step, summary=self._summary(value=points)))

    def purge(self, step: int) -> None:
        """Tell TensorBoard to forget points of `step` and later: a resumed run makes them again."""
        start = self._session(status=self._session.START)
        self._write(self._event(wall_time=time.time(), step=step, session_log=start))

    def close(self) -> None:
        """Close the file."""
        self._file.close()

    def _write(self, event: object) -> None:
        self._records.write(event.SerializeToString())  # type: ignore[attr-defined]
        self._file.flush()


def _seconds(path: Path) -> int:
    """The time in the name of an event file; 0 in another program's way of naming."""
    text = path.name.removeprefix(_NAME).partition(".")[0]
    return int(text) if text.isdecimal() else 0
