"""In place of Ray's own program that sets up a worker: has one forked by `fork_server.py`, and ends.

Where that does not answer, it becomes the worker itself. (Ray would skip a program named as its own, setup_worker.py.)
This is a script, not a module: it must start fast.
"""

import json
import os
import socket
import sys

# Names the socket of the fork server.
SOCKET = "RLTRAIN_FORK_SERVER"
# The first worker waits until the server has imported everything.
PATIENCE = 60.0
# Options for a program that sets up a worker; the worker does not know them.
FOR_SETUP = ("--language=", "--serialized-runtime-env-context=")


def forked(arguments: list[str]) -> bool:
    """Whether there is a worker now, with `arguments`, and with environment, folder and streams of this process."""
    worker = json.dumps([arguments, dict(os.environ), os.getcwd()]).encode()
    try:
        with socket.socket(socket.AF_UNIX) as connection:
            connection.settimeout(PATIENCE)
            connection.connect(os.environ[SOCKET])
            socket.send_fds(connection, [b"?"], [0, 1, 2])
            connection.sendall(worker)
            connection.shutdown(socket.SHUT_WR)
            return connection.recv(1) == b"!"
    except (OSError, KeyError):
        return False


def main() -> None:
    """Starts the worker whose program and arguments are this process's arguments, after flags for Python."""
    worker = [argument for argument in sys.argv[1:] if not argument.startswith(FOR_SETUP)]
    program = next(number for number, argument in enumerate(worker) if not argument.startswith("-"))
    if not forked(worker[program:]):
        os.execv(sys.executable, [sys.executable, *worker])


if __name__ == "__main__":
    main()
