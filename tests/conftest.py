"""Settings of all tests."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from hypothesis import settings

if TYPE_CHECKING:
    from xdist.remote import Producer
    from xdist.scheduler import LoadFileScheduling

# How long an example takes says how busy the machine is.
settings.register_profile("rltrain", deadline=None)
settings.load_profile("rltrain")


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Producer) -> LoadFileScheduling | None:
    """Files that share a slow start go to one process."""
    if config.getvalue("dist") != "loadfile":
        return None
    from together import Together

    return Together(config, log)
