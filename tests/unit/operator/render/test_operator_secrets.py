from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

from rl_operator.render.secrets import EXPORT, FOLDER, with_secrets

ENVIRONMENT = "import json, os; print(json.dumps(dict(os.environ)))"


def _environment(folder: Path, *, started: bool, base: dict[str, str] | None = None) -> dict[str, str]:
    """What a process sees that KubeRay has started behind the line, or that is run in the container later."""
    program = [sys.executable, "-c", ENVIRONMENT]
    line = f"{EXPORT} && ulimit -n 64; {sys.executable} -c '{ENVIRONMENT}'"
    command = ["/bin/bash", "-c", "--", f" {line} "] if started else with_secrets(program)
    command = [part.replace(FOLDER, str(folder)) for part in command]
    done = subprocess.run(command, env=base or {}, capture_output=True, text=True, timeout=60, check=True)
    assert done.stderr == ""
    found: dict[str, str] = json.loads(done.stdout)
    return found


def _write(folder: Path, **values: str) -> None:
    # As the kubelet writes a Secret: links into a hidden folder.
    hidden = folder / "..data"
    hidden.mkdir(parents=True)
    for name, value in values.items():
        (hidden / name).write_text(value)
        (folder / name).symlink_to(hidden / name)


def test_keys_become_variables(tmp_path: Path) -> None:
    _write(tmp_path / "00", HF_TOKEN="first", WORDS="a 'b' \"c\" $HOME `d`\nnext")
    _write(tmp_path / "01", HF_TOKEN="second\n", **{"not-a-name": "x", "1ST": "x"})
    for started in (True, False):
        found = _environment(tmp_path, started=started)
        assert found["HF_TOKEN"] == "second"
        assert found["WORDS"] == "a 'b' \"c\" $HOME `d`\nnext"
        assert not {"not-a-name", "1ST"} & found.keys()


def test_what_is_not_the_runs_to_say_stays_as_it_is(tmp_path: Path) -> None:
    names = ("RAY_AUTH_MODE", "RAY_AUTH_TOKEN", "RLTRAIN_FENCE", "NVIDIA_VISIBLE_DEVICES", "FQ_RAY_IP")
    _write(tmp_path / "00", **dict.fromkeys((*names, "RAY_ADDRESS", "KUBERAY_X"), "disabled"))
    base = dict.fromkeys(names, "ours")
    for started in (True, False):
        found = _environment(tmp_path, started=started, base=base)
        assert found.items() >= base.items()
        assert not {"RAY_ADDRESS", "KUBERAY_X"} & found.keys()


def test_without_secrets_nothing_changes(tmp_path: Path) -> None:
    assert "HF_TOKEN" not in _environment(tmp_path / "none", started=False)


def test_kubernetes_finds_no_variable_of_its_own_in_the_line() -> None:
    # It fills in $(NAME) in a container's args where it knows NAME.
    assert "$(<" in EXPORT
    assert "$(" not in EXPORT.replace("$(<", "")
