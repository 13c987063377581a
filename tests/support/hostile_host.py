"""An object for a `KillableProcess` whose author is no friend of the trainer's."""

from __future__ import annotations

import os
import pickle
import signal
import struct
import sys
import time
from typing import Any

from rl_trainer.tasks import worker


class Runs:
    """What a pickle of it runs where it is read."""

    def __init__(self, file: str) -> None:
        self.file = file

    def __reduce__(self) -> Any:
        return (os.system, (f"touch {self.file}",))


def _says(data: bytes) -> None:
    """To the process that asks, past all that would look at it."""
    os.set_blocking(int(sys.argv[2]), True)
    os.write(int(sys.argv[2]), data)


class HostileHost:
    """Lives in the process; made there by name, since this module can be imported."""

    def user(self) -> int:
        return os.getuid()

    def variable(self, name: str) -> str | None:
        return os.environ.get(name)

    def reads(self, place: str) -> bytes | None:
        try:
            with open(place, "rb") as file:
                return file.read()[:100]
        except OSError:
            return None

    def ends_us(self, pid: int) -> bool:
        try:
            os.kill(pid, 0)
        except PermissionError:
            return False
        return True

    def runs(self, file: str) -> Any:
        return Runs(file)

    def pickles(self, file: str) -> None:
        worker.encode = lambda value: pickle.dumps(Runs(file))  # type: ignore[assignment]

    def babbles(self, file: str) -> None:
        worker.encode = lambda value: b"cos\nsystem\n(S'touch " + file.encode() + b"'\ntR."

    def announces(self, file: str) -> None:
        _says(struct.pack(">Q", 10 * 2**30))
        time.sleep(1000)

    def closes(self, file: str) -> None:
        os.close(int(sys.argv[2]))
        time.sleep(1000)

    def begins(self) -> None:
        _says(struct.pack(">Q", 100) + b"half")
        time.sleep(1000)

    def says_nothing(self) -> None:
        signal.signal(signal.SIGUSR1, signal.SIG_IGN)
        time.sleep(1000)

    def says_much_of_where(self) -> None:
        trace = int(sys.argv[4])
        os.write(trace, b'  File "\x1b[2J' + b"x" * 50_000 + b'", line 1 in f\n')
        while True:
            os.write(trace, b"x" * 4096)
