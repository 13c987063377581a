"""An object for a `KillableProcess`: counts, fails and hangs as it is told."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable

from rl_api.errors import TaskError


class Host:
    """Lives in the process; made there by name, since this module can be imported."""

    passes = (TaskError,)

    def __init__(self, start: int = 0) -> None:
        self.count, self.file = start, __file__

    def add(self, number: int) -> int:
        self.count += number
        return self.count

    def pid(self) -> int:
        return os.getpid()

    def has_torch_or_ray(self) -> bool:
        return "torch" in sys.modules or "ray" in sys.modules

    def fails(self) -> None:
        raise KeyError("here")

    def leaves(self) -> None:
        raise SystemExit("enough")

    def refuses(self) -> None:
        raise TaskError("task.args: wrong")

    def loops(self) -> None:
        while True:
            pass

    def sleeps(self) -> None:
        time.sleep(1000)

    def computes_in_c(self) -> None:
        pow(7, 10**9)

    def leaves_a_child(self) -> int:
        return subprocess.Popen(["sleep", "1000"]).pid

    def starts_a_child(self, file: str) -> None:
        child = subprocess.Popen(["sleep", "1000"])
        with open(file, "w") as opened:
            opened.write(str(child.pid))
        child.wait()

    def forks(self) -> int:
        child = os.fork()
        if child:
            os.waitpid(child, 0)
        return child

    def ends(self, code: int) -> None:
        os._exit(code)

    def is_killed(self) -> None:
        os.kill(os.getpid(), signal.SIGKILL)

    def returns_a_function(self) -> Callable[[], int]:
        return lambda: 0
