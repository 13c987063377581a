"""Tests run on several processes at once; what shares an expensive fixture stays on one of them."""

from __future__ import annotations

import pytest


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """A file's tests stay together (its Ray), and so do all that need the kube-apiserver."""
    for item in items:
        shared = "kube" in getattr(item, "fixturenames", ())
        item.add_marker(pytest.mark.xdist_group("kube" if shared else str(item.path)))
