"""The token of the status server is taken once, and then nobody finds it in the environment."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from rl_api.errors import InvalidConfig
from rl_trainer.run.status_token import take_token

LOOK = """
import os, subprocess, sys
from rl_trainer.run.status_token import take_token
assert b"geheim" in open("/proc/self/environ", "rb").read() or len(sys.argv) > 1
assert take_token() == "geheim", "it is given"
assert take_token() is None, "once"
own = open("/proc/self/environ", "rb").read()
child = subprocess.run(["cat", "/proc/self/environ"], capture_output=True, check=True).stdout
assert b"geheim" not in own + child, own
assert b"OTHER=stays" in own and b"OTHER=stays" in child
print("clean")
"""


@pytest.mark.skipif(sys.platform != "linux", reason="/proc is Linux's")
def test_neither_this_process_nor_its_children_show_it() -> None:
    environment = {**os.environ, "A": "b", "RLTRAIN_STATUS_TOKEN": "geheim", "OTHER": "stays"}
    done = subprocess.run(
        [sys.executable, "-c", LOOK], env=environment, capture_output=True, text=True, timeout=60
    )
    assert (done.stdout, done.stderr) == ("clean\n", "")


def test_a_file_comes_before_the_variable(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "token").write_text("of the file\n")
    monkeypatch.setenv("RLTRAIN_STATUS_TOKEN", "of the variable")
    monkeypatch.setenv("RLTRAIN_STATUS_TOKEN_FILE", str(tmp_path / "token"))
    assert take_token() == "of the file"
    assert not {"RLTRAIN_STATUS_TOKEN", "RLTRAIN_STATUS_TOKEN_FILE"} & set(os.environ)
    assert take_token() is None


def test_a_file_without_a_token_is_a_sentence(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for content, why in (
        (None, r"cannot be read \(No such file"),
        (b"\xff", "it is no text"),
        (b" \n", "is empty"),
    ):
        if content is not None:
            (tmp_path / "token").write_bytes(content)
        monkeypatch.setenv("RLTRAIN_STATUS_TOKEN_FILE", str(tmp_path / "token"))
        with pytest.raises(InvalidConfig, match=f"RLTRAIN_STATUS_TOKEN_FILE: .*{why}"):
            take_token()
