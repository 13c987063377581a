"""Settings of all tests."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from hypothesis import settings

if TYPE_CHECKING:
    from xdist.remote import Producer
    from xdist.scheduler import LoadFileScheduling

UNIT = Path(__file__).with_name("unit")

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


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Which lines are run is seen in unit tests: to watch each line of the others' would take half of their time as well."""
    for item in items:
        if UNIT not in item.path.parents:
            item.add_marker("no_cover")
