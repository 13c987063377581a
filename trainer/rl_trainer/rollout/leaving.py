"""How a sampler hears that its pod is told to go: its `preStop` is `python -m rl_trainer.rollout.leaving SOCKET SECONDS`.

Ray's own processes hear of it too late, by the signal that ends them: then nobody is left to hand anything over. The hook
comes before that signal, whoever takes the pod away: a smaller number of samplers, a drained node, a spot node that is
reclaimed. It ends as soon as nothing depends on this pod any more, and at once where no sampler listens.

The standard library alone: the hook's seconds are those of the pod's grace.
"""

from __future__ import annotations

import socket
import sys
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path


class Door:
    """Where one sampler listens, in a thread, for as long as its process lives."""

    def __init__(self, at: Path, leave: Callable[[], int | None]) -> None:
        """Begins to. `leave`: called at each notice; how many groups it gave back, once that is done; None: it cannot."""
        self._leave = leave
        at.unlink(missing_ok=True)  # of a sampler that died in this pod
        self._listening = socket.socket(socket.AF_UNIX)
        self._listening.bind(str(at))
        self._listening.listen()
        threading.Thread(target=self._serve, name="notice to leave", daemon=True).start()

    def close(self) -> None:
        """Listens no more."""
        with suppress(OSError):
            self._listening.shutdown(socket.SHUT_RDWR)
        self._listening.close()

    def _serve(self) -> None:
        while True:
            try:
                end, _ = self._listening.accept()
            except OSError:  # closed
                return
            with suppress(OSError), end:  # who asked may have gone
                if (groups := self._leave()) is not None:
                    end.sendall(f"{groups} unfinished groups are given back".encode())


def ask_to_leave(at: Path, seconds: float) -> str:
    """Tells the sampler that listens there; returns what it says when it has given everything back.

    Raises:
        OSError: no sampler listens there, or not any more.
        TimeoutError: it has not answered after `seconds`.
    """
    deadline = time.monotonic() + seconds
    said = b""
    with socket.socket(socket.AF_UNIX) as end:
        end.settimeout(seconds)
        end.connect(str(at))
        while part := end.recv(4096):
            said += part
            end.settimeout(max(0.001, deadline - time.monotonic()))
    if not said:
        raise OSError("the sampler died, or the run's buffer is gone")
    return said.decode()


def main(arguments: Sequence[str]) -> int:
    """The command; its exit status is 1 where nothing was given back. The kubelet goes on in either case."""
    at, seconds = arguments
    try:
        print(ask_to_leave(Path(at), float(seconds)))
    except TimeoutError:
        print(f"the sampler has not given its groups back within {seconds} s", file=sys.stderr)
        return 1
    except OSError as error:
        print(f"no groups are given back: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
