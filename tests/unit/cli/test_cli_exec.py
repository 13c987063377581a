"""What `rltrain exec` says before it asks a cluster, and how its command is told from its options."""

from __future__ import annotations

import sys

import pytest

from rl_cli.main import main


def test_without_a_command_it_needs_a_terminal(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys.stdin, "isatty", lambda: False)
    assert main(["exec", "sums", "-n", "team-a"]) == 2
    assert "no terminal for a shell: name one after --, as in rltrain exec sums -- ray status" in (
        capsys.readouterr().err
    )


def test_what_stands_after_the_dashes_is_the_command_alone(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("KUBECONFIG", "/nowhere/kubeconfig")
    # `-n` and `--help` after the dashes are not ours, or this would be the help, or wrong input of another kind.
    assert main(["exec", "sums", "-n", "team-a", "--", "grep", "-n", "--help", "--"]) == 2
    assert "no kubeconfig: there is no /nowhere/kubeconfig" in capsys.readouterr().err


def test_no_other_command_takes_dashes(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["watch", "--", "sums"]) == 2
    assert capsys.readouterr().err == ("rltrain: found --, allowed only before the command of rltrain exec\n")
