"""Imports what Ray's workers need, once, and forks a worker for everyone who asks (`start_worker.py`).

Importing Ray and torch takes a worker seconds, and a run has three at least. Started with the number of a listening socket
as its argument; ends when its standard input does.

torch is imported at once. Ray is imported when the first worker is asked for, with that worker's environment: Ray reads
its settings from there when it is imported, and all workers of a node have the same. Nothing here starts a thread or
touches a device, so a fork is a process as good as new.
"""

from __future__ import annotations

import gc
import json
import os
import random
import runpy
import select
import signal
import socket
import sys
from pathlib import Path


def serve(listener: socket.socket) -> None:
    """Forks for everyone who connects, until standard input ends; returns in no fork."""
    # Ctrl-C is for the driver, as with Ray's own processes.
    signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGINT])
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # nobody waits for the workers: they leave no zombies
    import torch  # noqa: F401

    ready = False
    while True:
        asked, _, _ = select.select([listener.fileno(), 0], [], [])
        if 0 in asked:
            break
        connection, _ = listener.accept()
        with connection:
            streams, arguments = list[int](), None
            try:
                _, streams, _, _ = socket.recv_fds(connection, 1, 3)
                parts = iter(lambda: connection.recv(1 << 16), b"")  # noqa: B023
                arguments, environment, folder = json.loads(b"".join(parts))
                if not ready:
                    _import_ray(environment)
                    ready = True
                connection.sendall(b"!")
            # It was killed before it had said all, or did not wait that long, and started a worker itself.
            except (OSError, ValueError):
                arguments = None
        if arguments is not None and os.fork() == 0:
            listener.close()
            for number, stream in enumerate(streams):
                os.dup2(stream, number)
                os.close(stream)
            _work(arguments, environment, folder)
        for stream in streams:
            os.close(stream)
    # The one that started this has ended, maybe without time to tidy up.
    socket_path = Path(listener.getsockname())
    socket_path.unlink(missing_ok=True)
    socket_path.parent.rmdir()


def _import_ray(environment: dict[str, str]) -> None:
    os.environ.clear()
    os.environ.update(environment)

    import rl_trainer.buffer.actor
    import rl_trainer.learner.actor
    import rl_trainer.rollout.actor  # noqa: F401

    gc.collect()
    gc.freeze()  # what is there stays, so the forks share its memory


def _work(arguments: list[str], environment: dict[str, str], folder: str) -> None:
    """Ray's program of a worker, in this process."""
    import numpy as np

    os.setpgrp()  # as Ray does: a signal to the driver's group is not for its workers
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    os.environ.clear()
    os.environ.update(environment)
    os.chdir(folder)
    random.seed()
    np.random.seed()
    sys.argv = arguments
    sys.path[0] = str(Path(sys.argv[0]).parent)
    runpy.run_path(sys.argv[0], run_name="__main__")
    sys.exit()


if __name__ == "__main__":
    serve(socket.socket(fileno=int(sys.argv[1])))
