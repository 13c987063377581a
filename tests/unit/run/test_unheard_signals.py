"""A signal that Python's main thread cannot hear of is acted on all the same."""

import subprocess
import sys

import pytest

PROGRAM = """
import ctypes, os, signal, sys, threading, time
from rl_trainer.run.local_ray import unheard_signals

def heard(*_):
    sys.exit(7)

signal.signal(signal.SIGTERM, heard)
unheard_signals.PATIENCE_SECONDS = {"in C": 0.2, "in Python": 30}[sys.argv[1]]
libc, mutex = ctypes.CDLL(None), ctypes.create_string_buffer(64)
libc.pthread_mutex_lock(mutex)
with unheard_signals.unheard_signals(lambda number: os._exit(100 + number)):
    if sys.argv[1] == "in C":
        # Nobody's turn ends before this thread waits in C: so the other says that it hears nothing from here on.
        sys.setswitchinterval(3600)
        deaf = threading.Event()
        threading.Thread(target=lambda: (deaf.wait(), print("ready", flush=True)), daemon=True).start()
        deaf.set()
        libc.pthread_mutex_lock(mutex)
    print("ready", flush=True)
    time.sleep(60)
"""


@pytest.mark.parametrize(("where", "code"), [("in C", 115), ("in Python", 7)])
def test_who_does_not_hear_a_signal_is_ended(where: str, code: int):
    with subprocess.Popen([sys.executable, "-c", PROGRAM, where], stdout=subprocess.PIPE) as process:
        try:
            assert process.stdout is not None
            assert process.stdout.readline() == b"ready\n"
            process.terminate()
            assert process.wait(30) == code
        finally:
            process.kill()
