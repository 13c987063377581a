"""Ray's private parts are touched only where its version is the one that is known."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.metadata import version
from pathlib import Path
from types import SimpleNamespace

import pytest
import ray
from ray._private.node import Node

from rl_trainer.run.local_ray import processes
from rl_trainer.run.local_ray.processes import WRITTEN_FOR, known_ports, quick_start


@pytest.mark.parametrize(
    ("found", "changed"),
    [("2.60.0", True), ("2.60.7", True), ("2.6.0", False), ("2.50.0", False), ("2.61.0", False)],
)
def test_only_a_known_ray_is_changed(found: str, changed: bool, monkeypatch: pytest.MonkeyPatch):
    inside = []

    @contextmanager
    def change() -> Iterator[None]:
        inside.append(True)
        yield
        inside.pop()

    monkeypatch.setattr(ray, "__version__", found)
    with quick_start(change, change):
        assert inside == [True, True] * changed
    assert not inside


def test_the_known_ray_is_the_one_that_is_installed():
    assert version("ray").startswith(WRITTEN_FOR)


def test_agents_are_told_ports_that_the_system_gives_to_nobody_else_meanwhile(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(Node, "start_raylet", lambda node: None)
    node = SimpleNamespace(_ray_params=SimpleNamespace(), _session_dir=tmp_path, _node_id="here")
    with known_ports():
        Node.start_raylet(node)
    told = vars(node._ray_params)
    assert {path.name: int(path.read_text()) for path in tmp_path.iterdir()} == {
        f"{name}_here": port for name, port in told.items()
    }
    assert len(set(told.values())) == len(told) == 4
    # Above those of Ray's workers, below those of connections and of servers that ask for any.
    assert all(20_000 <= port < 32_768 for port in told.values()), told


def test_a_port_at_which_somebody_listens_is_not_told():
    with socket.socket() as server:
        server.bind(("127.0.0.1", 0))
        server.listen()
        port = server.getsockname()[1]
        with pytest.raises(OSError, match=f"fewer than 1 of the ports {port} to {port} are free"):
            processes._free_ports(1, [port])
