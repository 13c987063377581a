"""Fixtures for code of the user's in both isolations."""

import pytest
from code_container import code_container

from rl_api.task import SOCKET_VARIABLE


@pytest.fixture(scope="module")
def elsewhere():
    with code_container() as (listening, _):
        yield listening


@pytest.fixture(params=["shared", "strict"])
def isolation(request, monkeypatch):
    """Where the process is: of the same user here, or of another one behind a socket."""
    if request.param == "strict":
        monkeypatch.setenv(SOCKET_VARIABLE, str(request.getfixturevalue("elsewhere")))
    return request.param
