import os
import signal
import subprocess
import sys

from rl_trainer.flow.liveness import Probe, Progress, look_at

CHILD = """
import os, sys
from rl_trainer.flow.liveness import Progress
progress = Progress("test-liveness")
if os.fork() == 0:  # a forked child must not keep the dead parent alive
    os.close(1)
    sys.stdin.readline()
    os._exit(0)
for total in (1, 2, 3):
    progress.delivered = total
print(progress.path, flush=True)
sys.stdin.readline()
"""


def test_a_killed_process_is_dead_at_once_and_its_count_is_kept():
    child = subprocess.Popen([sys.executable, "-c", CHILD], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    path = child.stdout.readline().decode().strip()
    probe = Probe(path)
    assert probe.look() == (True, 3)
    child.send_signal(signal.SIGSTOP)  # slow is not dead
    assert probe.look() == (True, 3)
    child.kill()
    child.wait()
    assert probe.look() == (False, 3)
    assert look_at(path) == (False, 3)
    os.unlink(path)
    assert probe.look() == (False, 3)  # the name is not needed
    probe.close()
    child.stdin.close()
    child.stdout.close()


def test_closing_ends_it():
    progress = Progress("test-liveness-closing")
    progress.delivered = 7
    assert progress.delivered == 7
    path = progress.path
    assert os.path.exists(path)
    progress.close()
    assert not os.path.exists(path)
    assert look_at(path) == (False, 0)
