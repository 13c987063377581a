"""The operator's key: made once, the same for all replicas, and never one that is easy to guess."""

from __future__ import annotations

import asyncio
import base64
from pathlib import Path
from typing import Any, cast

import pytest

from rl_operator.kube.client import Api
from rl_operator.kube.wire import ApiError
from rl_operator.runtime.key import BadKey, key_of_file, key_of_secret

EXISTS = ApiError(409, "AlreadyExists", 'secrets "key" already exists')


class Secrets:
    """An API server with one Secret, perhaps; `late`: another operator makes it first, after we looked for it."""

    def __init__(self, there: dict[str, Any] | None = None, late: dict[str, Any] | None = None) -> None:
        self.there, self.late = there, late
        self.refusal: ApiError | None = None

    async def find(self, kind: str, namespace: str, name: str) -> dict[str, Any] | None:
        assert (kind, namespace, name) == ("Secret", "system", "key")
        return self.there

    async def get(self, kind: str, namespace: str, name: str) -> dict[str, Any]:
        assert (kind, namespace, name) == ("Secret", "system", "key")
        assert self.there is not None
        return self.there

    async def create(self, manifest: dict[str, Any]) -> dict[str, Any]:
        if self.refusal is not None:
            raise self.refusal
        if self.late is not None:
            self.there = self.late
            raise EXISTS
        self.there = manifest
        return manifest


def secret(key: bytes | str) -> dict[str, Any]:
    return {"data": {"key": key if isinstance(key, str) else base64.b64encode(key).decode()}}


def found(server: Secrets) -> bytes:
    return asyncio.run(key_of_secret(cast(Api, server), "system", "key"))


def test_it_is_made_once_at_random_and_cannot_be_changed() -> None:
    server = Secrets()
    key = found(server)
    assert len(key) == 32
    assert found(server) == key
    assert server.there is not None
    assert server.there["immutable"] is True
    assert found(Secrets()) != key


def test_of_two_that_make_it_at_once_both_have_the_same() -> None:
    first = secret(b"1" * 32)
    assert found(Secrets(late=first)) == b"1" * 32


def test_it_may_not_be_made() -> None:
    server = Secrets()
    server.refusal = ApiError(403, "Forbidden", "secrets is forbidden")
    with pytest.raises(ApiError, match="secrets is forbidden"):
        found(server)


@pytest.mark.parametrize(
    ("there", "size"), [({}, 0), (secret("no base64"), 0), (secret(b"short"), 5), ({"data": None}, 0)]
)
def test_what_is_no_key_is_refused(there: dict[str, Any], size: int) -> None:
    sentence = f"data.key of the Secret system/key: found {size} bytes, needed are 32 or more, at random"
    with pytest.raises(BadKey, match=f"^{sentence}$"):
        found(Secrets(there))


def test_it_may_be_in_a_file(tmp_path: Path) -> None:
    file = tmp_path / "key"
    file.write_bytes(b"1" * 40)
    assert key_of_file(file) == b"1" * 40
    file.write_bytes(b"1" * 31)
    with pytest.raises(BadKey, match="found 31 bytes, needed are 32 or more"):
        key_of_file(file)
