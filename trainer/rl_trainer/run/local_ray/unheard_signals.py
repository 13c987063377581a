"""A signal while Ray starts: Python's handlers run between bytecodes, and Ray may be in C++ for minutes."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

# How long the main thread may take to hear of a signal.
PATIENCE_SECONDS = 3.0


@contextmanager
def unheard_signals(end: Callable[[int], None]) -> Iterator[None]:
    """Calls `end` in another thread with the number of a signal that did not end the block within `PATIENCE_SECONDS`.

    Only SIGINT and SIGTERM count, where Python handles them and the block runs in the main thread.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    reading, writing = os.pipe()
    os.set_blocking(writing, False)
    over = threading.Event()

    def watch() -> None:
        while number := os.read(reading, 1):
            if number[0] in (signal.SIGINT, signal.SIGTERM) and not over.wait(PATIENCE_SECONDS):
                end(number[0])

    thread = threading.Thread(target=watch, name="unheard signals", daemon=True)
    thread.start()
    previous = signal.set_wakeup_fd(writing, warn_on_full_buffer=False)
    try:
        yield
    finally:
        signal.set_wakeup_fd(previous)
        over.set()
        os.close(writing)
        thread.join()
        os.close(reading)
