"""The other end of `peers.Worker`: serves requests on standard input, one JSON line each, in whatever
environment.

Standard library only: it is imported by scripts that run in a peer's environment.
"""

from __future__ import annotations

import json
import os
import sys
import traceback
from collections.abc import Callable
from typing import Any


def serve(prepare: Callable[[], Callable[[dict[str, Any]], dict[str, Any]]]) -> None:
    """Call `prepare` for a handler, say `ready`, then answer each request line with the handler's result.

    Peers print what they like: their standard output goes to standard error, and answers to the real one.
    """
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)

    def answer(payload: dict[str, Any]) -> None:
        answers.write(json.dumps(payload) + "\n")
        answers.flush()

    try:
        handler = prepare()
        answer({"ready": True})
        for line in sys.stdin:
            answer(handler(json.loads(line)))
    except Exception:
        traceback.print_exc()
        answer({"error": traceback.format_exc(limit=1).strip().splitlines()[-1]})
        sys.exit(1)
