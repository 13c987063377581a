"""Ray's private parts are touched only where its version is the one that is known."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from importlib.metadata import version

import pytest
import ray

from rl_trainer.run.local_ray.processes import WRITTEN_FOR, quick_start


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
