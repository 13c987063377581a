"""The entry point: which command is meant, what is imported for it, and what it says when something is missing."""

from __future__ import annotations

import json
import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

import rl_cli.main as entry
from rl_cli.main import CLUSTER, HERE, main

PROJECT = tomllib.loads(Path(__file__).parents[3].joinpath("pyproject.toml").read_text())["project"]

SCRIPT = """
import sys
from rl_cli.main import main
try:
    code = main({arguments!r})
except SystemExit as end:
    code = end.code
heavy = {heavy!r}
print(code, *[name for name in heavy if name in sys.modules], file=sys.stderr)
"""


def imported(arguments: list[str], *heavy: str) -> str:
    """Exit code, and which of `heavy` were imported."""
    code = SCRIPT.format(arguments=arguments, heavy=heavy)
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True
    )
    return done.stderr.splitlines()[-1]


def test_help_imports_nothing() -> None:
    assert imported(["--help"], "rl_api", "pydantic", "kubernetes", "rich", "ray", "torch", "yaml") == "0"


def test_a_command_for_a_cluster_needs_no_trainer() -> None:
    assert imported(["render", "--help"], "kubernetes", "ray", "torch", "numpy", "kopf", "aiohttp") == "0"
    assert imported(["watch", "--help"], "kubernetes", "ray", "torch", "numpy", "kopf", "aiohttp") == "0"


def test_help_lists_every_command(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as end:
        main(["--help"])
    assert end.value.code == 0
    text = capsys.readouterr().out
    for command in (*HERE, *CLUSTER):
        assert f"  {command.name:<10}{command.help}\n" in text


def test_version(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as end:
        main(["--version"])
    assert end.value.code == 0
    assert capsys.readouterr().out == f"rltrain {PROJECT['version']}\n"


@pytest.mark.parametrize("command", [command.name for command in (*HERE, *CLUSTER)])
def test_every_command_has_examples(command: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as end:
        main([command, "--help"])
    assert end.value.code == 0
    assert f"examples:\n  rltrain {command} " in capsys.readouterr().out


def test_unknown_command(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["wacth", "run"]) == 2
    assert capsys.readouterr().err == "rltrain: 'wacth' is no command; did you mean watch?\n"


def test_no_command(capsys: pytest.CaptureFixture[str]) -> None:
    assert main([]) == 2
    error = capsys.readouterr().err
    assert error.startswith(
        "rltrain: no command given; allowed: run, serve, generate, chat, compare, validate, plan, profile, verify, "
    )
    assert error.count("\n") == 1


def test_validate_needs_neither_trainer_nor_cluster(tmp_path: Path) -> None:
    (tmp_path / "run.yaml").write_text("kind: RLTrainingRun\n")
    heavy = "kubernetes", "ray", "torch", "numpy", "rich"
    assert imported(["validate", str(tmp_path / "run.yaml")], *heavy) == "2"


def test_a_file_that_is_not_there(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["validate", str(tmp_path / "nothing.yaml")]) == 2
    assert "no such file" in capsys.readouterr().err


def test_run_without_the_trainer(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(entry.importlib.util, "find_spec", lambda name: None)
    assert main(["run", "examples/quickstart.yaml"]) == 1
    assert capsys.readouterr().err == (
        "rltrain: rltrain run needs the package ray, which is not installed: pip install 'rltrain[trainer]'\n"
    )


def test_a_report_of_a_folder_needs_no_extra(tmp_path: Path) -> None:
    """A laptop has `rltrain[cluster]`, and a run folder that was copied from there."""
    step = {"step": 1, "time": 1.0, "wall_seconds": 1.0, "reward_mean": 0.5}
    (tmp_path / "metrics.jsonl").write_text(json.dumps(step) + "\n")
    extras = (one for group in PROJECT["optional-dependencies"].values() for one in group)
    hidden = [re.split(r"[^\w-]", one)[0].replace("-", "_") for one in extras]
    assert {"torch", "ray", "numpy", "kubernetes"} < set(hidden)
    script = "import sys\nsys.modules |= dict.fromkeys({hidden!r})\nfrom rl_cli.main import main\nsys.exit(main({words!r}))"
    done = subprocess.run(
        [sys.executable, "-c", script.format(hidden=hidden, words=["report", str(tmp_path)])],
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert (done.returncode, done.stderr) == (0, "")
    assert "</html>" in (tmp_path / "report.html").read_text()


def test_watch_without_the_kubernetes_client(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(sys.modules, "kubernetes", None)
    monkeypatch.delitem(sys.modules, "rl_cli.cluster", raising=False)
    assert main(["watch"]) == 1
    assert capsys.readouterr().err == (
        "rltrain: rltrain watch needs the package kubernetes, which is not installed: "
        "pip install 'rltrain[cluster]'\n"
    )


def test_hints_name_the_command_that_was_typed(monkeypatch: pytest.MonkeyPatch) -> None:
    assert entry.program() == "rltrain"
    monkeypatch.setattr(sys, "argv", ["/usr/local/bin/kubectl-rltrain", "watch"])
    assert entry.program() == "kubectl rltrain"


def test_no_kubeconfig(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("KUBECONFIG", str(tmp_path / "none"))
    assert main(["watch", "run"]) == 2
    assert capsys.readouterr().err == (
        f"rltrain: no kubeconfig: there is no {tmp_path / 'none'}; name one with --kubeconfig or KUBECONFIG\n"
    )


@pytest.mark.parametrize("text", ["", "[]", "a: b", "{", "current-context: x\ncontexts: []\n"])
def test_broken_kubeconfig(tmp_path: Path, text: str, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "config"
    path.write_text(text)
    assert main(["watch", "--kubeconfig", str(path)]) == 2
    error = capsys.readouterr().err
    assert error.startswith(f"rltrain: {path}: not a usable kubeconfig: ")
    assert error.count("\n") == 1


def test_unknown_context(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "config"
    path.write_text(
        "current-context: one\n"
        "contexts: [{name: one, context: {cluster: c, user: u}}, {name: two, context: {cluster: c, user: u}}]\n"
        "clusters: [{name: c, cluster: {server: 'https://127.0.0.1:9'}}]\n"
        "users: [{name: u, user: {}}]\n"
    )
    assert main(["watch", "--kubeconfig", str(path), "--context", "three"]) == 2
    assert capsys.readouterr().err == "rltrain: --context: found 'three', allowed: one, two\n"


@pytest.mark.parametrize(("words", "found"), [(["run"], "NAME"), (["-n", "team-a"], "--namespace")])
def test_all_namespaces_and_one(words: list[str], found: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["watch", "-A", *words]) == 2
    assert capsys.readouterr().err == (
        f"rltrain: --all-namespaces: found with {found}, allowed: one of them\n"
    )
