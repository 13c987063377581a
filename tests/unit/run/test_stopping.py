from __future__ import annotations

import queue
import signal

from rl_trainer.run.stopping import StopRequest


def test_a_signal_asks_for_a_stop_and_tells_the_exit_code():
    told = queue.SimpleQueue()
    with StopRequest() as request:
        request.begin(told.put)
        assert not request.requested
        signal.raise_signal(signal.SIGTERM)
        assert request.requested
        assert request.exit_code == 143
        assert told.get(timeout=30).startswith("SIGTERM: stopping after this step")
