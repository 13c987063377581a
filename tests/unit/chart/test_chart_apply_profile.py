"""The Job's script: waits until the kind is served, keeps what was changed by hand, says what went wrong."""

from __future__ import annotations

import importlib.util
import json
import threading
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

SCRIPT = Path(__file__).parents[3] / "charts" / "rltrain" / "files" / "apply_profile.py"
PROFILE = {"apiVersion": "rltrain.dev/v1alpha1", "kind": "RLTrainingProfile", "metadata": {"name": "default"}}


class Server:
    """An API server that gives the answers it was told to, one after the other, the last for ever."""

    def __init__(self) -> None:
        self.answers: list[int] = [201]
        self.seen: list[tuple[str, dict[str, str], Any]] = []
        server = self

        class Handler(BaseHTTPRequestHandler):
            def do_PATCH(self) -> None:
                body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
                server.seen.append((self.path, dict(self.headers), body))
                code = server.answers.pop(0) if len(server.answers) > 1 else server.answers[0]
                self.send_response(code)
                self.end_headers()
                self.wfile.write(b'{"message": "so it is"}')

            def log_message(self, *_: Any) -> None:
                return

        self.http = HTTPServer(("127.0.0.1", 0), Handler)
        threading.Thread(target=self.http.serve_forever, daemon=True).start()


@pytest.fixture
def server() -> Iterator[Server]:
    server = Server()
    yield server
    server.http.shutdown()
    server.http.server_close()


@pytest.fixture
def script(server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    (tmp_path / "token").write_text("secret\n")
    monkeypatch.setenv("SERVICE_ACCOUNT_FOLDER", str(tmp_path))
    monkeypatch.setenv("KUBERNETES_URL", f"http://127.0.0.1:{server.http.server_port}")
    monkeypatch.setenv("DEADLINE_SECONDS", "60")
    spec = importlib.util.spec_from_file_location("apply_profile", SCRIPT)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    module.PAUSE_SECONDS = 0.01
    return module


@pytest.fixture
def apply(script: ModuleType, tmp_path: Path) -> Callable[[], int]:
    file = tmp_path / "profile.json"
    file.write_text(json.dumps(PROFILE))
    return lambda: int(script.main(str(file)))


def test_it_applies_with_a_name_of_its_own(server: Server, apply: Callable[[], int]) -> None:
    assert apply() == 0
    ((path, headers, body),) = server.seen
    assert path == "/apis/rltrain.dev/v1alpha1/rltrainingprofiles/default?fieldManager=rltrain-chart"
    assert headers["Authorization"] == "Bearer secret"
    assert headers["Content-Type"] == "application/apply-patch+yaml"
    assert body == PROFILE


def test_it_waits_until_the_kind_is_served(
    server: Server, apply: Callable[[], int], capsys: pytest.CaptureFixture[str]
) -> None:
    server.answers = [404, 403, 500, 201]
    assert apply() == 0
    assert len(server.seen) == 4
    assert capsys.readouterr().out == "RLTrainingProfile default is made\n"


def test_a_change_by_hand_is_kept(
    server: Server, apply: Callable[[], int], capsys: pytest.CaptureFixture[str]
) -> None:
    server.answers = [409]
    assert apply() == 0
    assert "was changed by hand and is left as it is" in capsys.readouterr().out


def test_a_refusal_is_said_at_once(
    server: Server, apply: Callable[[], int], capsys: pytest.CaptureFixture[str]
) -> None:
    server.answers = [422]
    assert apply() == 1
    assert len(server.seen) == 1
    assert "is refused by the API server (422)" in capsys.readouterr().err


def test_a_kind_that_never_comes_is_said_after_the_deadline(
    server: Server, script: ModuleType, apply: Callable[[], int], capsys: pytest.CaptureFixture[str]
) -> None:
    assert script.DEADLINE_SECONDS == 60.0
    script.DEADLINE_SECONDS = 0.3
    server.answers = [404]
    assert apply() == 1
    assert "kubectl get crd rltrainingprofiles.rltrain.dev" in capsys.readouterr().err


def test_nobody_there(
    script: ModuleType, apply: Callable[[], int], capsys: pytest.CaptureFixture[str]
) -> None:
    script.SERVER, script.DEADLINE_SECONDS = "http://127.0.0.1:1", 0.3
    assert apply() == 1
    assert "the last answer of http://127.0.0.1:1 was 0" in capsys.readouterr().err
