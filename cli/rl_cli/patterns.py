"""Regular expressions of a run, compiled where its author is: neither the API server nor the operator does it."""

from __future__ import annotations

import subprocess
import sys
from typing import Final

from rl_api.describe import found
from rl_api.printable import printable
from rl_api.problems import Problem, spec_problem
from rl_api.run import RunSpec

_SECONDS: Final = 5.0
"""Some patterns take minutes, and nothing stops a compiler but the end of its process."""

_LONGEST_REASON: Final = 200

# The package that the trainer compiles with; where it is not installed, only the trainer can tell. In bounded memory: some
# patterns fill that of a machine sooner than their time is up.
_COMPILE: Final = """
import sys
try:
    import regex
    import resource
    try:
        resource.setrlimit(resource.RLIMIT_AS, (1 << 30, 1 << 30))
    except (OSError, ValueError):
        pass
    regex.compile(sys.stdin.buffer.read().decode())
except ImportError:
    pass
except Exception as error:
    sys.exit(ascii(str(error))[1:-1] or type(error).__name__)
"""


def wrong_patterns(spec: RunSpec) -> list[Problem]:
    """Patterns of rewards that are no regular expressions, or take too long to become one."""
    rewards = spec.given_task.rewards if spec.given_task is not None else ()
    patterns = {reward.pattern for reward in rewards if reward.pattern is not None}
    why = {pattern: _why_not(pattern) for pattern in patterns}
    return [
        spec_problem(
            f"task.rewards[{index}].pattern",
            f"found {found(reward.pattern)}, allowed: a regular expression{reason}",
        )
        for index, reward in enumerate(rewards)
        if reward.pattern is not None and (reason := why[reward.pattern])
    ]


def _why_not(pattern: str) -> str:
    """The end of the sentence; empty: it is one."""
    command = [sys.executable, "-I", "-c", _COMPILE]
    try:
        done = subprocess.run(command, input=pattern.encode(), capture_output=True, timeout=_SECONDS)
    except subprocess.TimeoutExpired:
        return f" that compiles within {_SECONDS:g} s"
    said = printable(done.stderr.decode(errors="replace").strip(), _LONGEST_REASON)
    return f" ({said or 'compiling it ends the process'})" if done.returncode else ""
