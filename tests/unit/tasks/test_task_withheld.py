"""Other people's code gets no credentials with its environment."""

from __future__ import annotations

import os
import re
from pathlib import Path

import pytest

from rl_trainer.tasks.killable import KillableProcess
from rl_trainer.tasks.withheld import for_user_code

SECRET = ("RLTRAIN_STATUS_TOKEN", "RAY_AUTH_TOKEN", "AWS_SECRET_ACCESS_KEY", "AWS_SESSION_TOKEN", "HF_TOKEN")


class Environment:
    """What a user's class sees."""

    def value(self, name: str) -> str | None:
        return os.environ.get(name)

    def initial(self) -> str:
        return Path("/proc/self/environ").read_text(errors="replace")


def test_credentials_are_left_out() -> None:
    everything = dict.fromkeys(SECRET, "geheim") | {"PATH": "/bin", "JUDGE_API_KEY": "k", "RLTRAIN_RUN": "a"}
    assert for_user_code(everything) == {"PATH": "/bin", "JUDGE_API_KEY": "k", "RLTRAIN_RUN": "a"}


def test_the_process_for_rewards_and_environments_has_none(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in SECRET:
        monkeypatch.setenv(name, "geheim")
    monkeypatch.setenv("JUDGE_API_KEY", "asked for")
    target = KillableProcess().target(Environment)
    assert [target.call(60, "value", name) for name in SECRET] == [None] * len(SECRET)
    assert target.call(60, "value", "JUDGE_API_KEY") == "asked for"
    assert not re.search("geheim", target.call(60, "initial"))
