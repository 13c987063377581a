"""A process that shares marks with others and does what it is told, a line at a time; see `Checker`.

    python checking_process.py FILE

`check NAME`: has what is called so checked once. Where it looks itself it says so (`looks`) and hears what it finds (`right`
or `wrong`). Says `right` or `wrong`. `drop`: nothing that was right is held any more. `fork`: a child of it drops that, and
ends.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

from rl_trainer.flow.node_checks import Wanted, check_once, mark_of
from rl_trainer.flow.shared_marks import SharedMarks


class Holder:
    """Of what is checked."""


class Wrong(Exception):
    """What a check finds."""


def wanted(name: str, check: Any) -> tuple[Holder, Wanted]:
    """What is called so, and what holds it."""
    holder = Holder()
    return holder, Wanted(holder, mark_of(name, 7, "in the store"), check)


class Checker:
    """Such a process, from another one. A context, at the end of which it is killed."""

    def __init__(self, path: Path) -> None:
        self._process = subprocess.Popen(
            [sys.executable, __file__, str(path)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )

    def __enter__(self) -> Checker:
        return self

    def __exit__(self, *_: object) -> None:
        self.kill()
        for pipe in (self._process.stdin, self._process.stdout):
            assert pipe is not None
            pipe.close()

    def tell(self, line: str) -> str:
        """Its next line."""
        self.say(line)
        return self.hear()

    def say(self, line: str) -> None:
        assert self._process.stdin is not None
        self._process.stdin.write(f"{line}\n")
        self._process.stdin.flush()

    def hear(self) -> str:
        assert self._process.stdout is not None
        return self._process.stdout.readline().strip()

    def kill(self) -> None:
        """Returns when it is dead."""
        self._process.kill()
        self._process.wait()

    def stop(self) -> None:
        """Returns when it stands still."""
        self._process.send_signal(signal.SIGSTOP)
        os.waitid(os.P_PID, self._process.pid, os.WSTOPPED)

    def go_on(self) -> None:
        self._process.send_signal(signal.SIGCONT)


def main() -> None:
    marks, held = SharedMarks(Path(sys.argv[1])), list[Holder]()

    def look() -> None:
        print("looks", flush=True)
        if sys.stdin.readline().strip() != "right":
            raise Wrong

    for line in sys.stdin:
        match line.split():
            case ["check", name]:
                holder, one = wanted(name, look)
                try:
                    check_once([one], marks)
                except Wrong:
                    print("wrong", flush=True)
                else:
                    held.append(holder)
                    print("right", flush=True)
                del holder, one
            case ["drop"]:
                held.clear()
                print("dropped", flush=True)
            case ["fork"]:
                if not (child := os.fork()):
                    held.clear()
                    os._exit(0)
                os.waitpid(child, 0)
                print("forked", flush=True)


if __name__ == "__main__":
    main()
