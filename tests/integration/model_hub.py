"""A Hugging Face hub on this machine: what the hub's own library asks of a server in order to download a model."""

from __future__ import annotations

import hashlib
import json
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

COMMIT = "0123456789abcdef0123456789abcdef01234567"


class ModelHub:
    """Serves model folders by repository id, and refuses others as the hub does.

    Attributes:
        models: repository id -> folder.
        refused: repository id -> the hub's word for it, such as GatedRepo.
        fetched: files that were downloaded.
    """

    def __init__(self) -> None:
        self.models: dict[str, Path] = {}
        self.refused: dict[str, str] = {}
        self.fetched: set[str] = set()
        hub = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def log_message(self, format: str, *args: Any) -> None:
                pass

            def do_HEAD(self) -> None:
                hub.answer(self)

            def do_GET(self) -> None:
                hub.answer(self)

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._server.daemon_threads = True
        self._thread = threading.Thread(target=self._server.serve_forever, daemon=True)

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self._server.server_port}"

    def __enter__(self) -> ModelHub:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._server.shutdown()
        self._server.server_close()

    def answer(self, request: BaseHTTPRequestHandler) -> None:
        """One request: a repository's description, the tree of a commit, or a file of it."""
        parts = request.path.partition("?")[0].strip("/").split("/")
        if parts[:2] == ["api", "models"]:
            parts = parts[2:]
        repository, rest = "/".join(parts[:2]), parts[2:]
        folder = self.models.get(repository)
        if folder is None or not rest:
            word = self.refused.get(repository, "RepoNotFound")
            return _send(request, 403 if word == "GatedRepo" else 404, b"{}", {"X-Error-Code": word})
        if rest[0] == "revision" and rest[1] not in ("main", COMMIT):
            return _send(request, 404, b"{}", {"X-Error-Code": "RevisionNotFound"})
        if rest[0] == "revision":
            files = [{"rfilename": path.name} for path in folder.iterdir()]
            body = {"id": repository, "sha": COMMIT, "siblings": files, "tags": [], "private": False}
            return _send(request, 200, json.dumps(body).encode(), {"Content-Type": "application/json"})
        if rest[0] == "tree":
            entries = [
                {"type": "file", "path": path.name, "size": path.stat().st_size, "oid": _digest(path)}
                for path in folder.iterdir()
            ]
            return _send(request, 200, json.dumps(entries).encode(), {"Content-Type": "application/json"})
        path = folder / rest[-1]
        if rest[0] != "resolve" or not path.is_file():
            return _send(request, 404, b"", {"X-Error-Code": "EntryNotFound"})
        if request.command == "GET":
            self.fetched.add(path.name)
        headers = {"ETag": f'"{_digest(path)}"', "X-Repo-Commit": COMMIT}
        return _send(request, 200, path.read_bytes(), headers)


def _digest(path: Path) -> str:
    return hashlib.sha1(path.read_bytes()).hexdigest()


def _send(request: BaseHTTPRequestHandler, code: int, body: bytes, headers: dict[str, str]) -> None:
    request.send_response(code)
    for name, value in headers.items():
        request.send_header(name, value)
    request.send_header("Content-Length", str(len(body)))
    request.end_headers()
    if request.command == "GET":
        request.wfile.write(body)
