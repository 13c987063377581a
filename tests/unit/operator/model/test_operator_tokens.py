from __future__ import annotations

import pytest

from rl_operator.model.tokens import derive_token


def test_a_token_is_the_same_for_the_same_and_another_for_anything_else() -> None:
    token = derive_token(b"key", "uid", 1, "status")
    assert token == derive_token(b"key", "uid", 1, "status")
    # HMAC-SHA256 of "uid\n1\nstatus": drivers that train through an upgrade know theirs.
    assert token == "61d20c47ade0ad1c60a224a1578b35a14e46ba7cbe8c5004c9055f4195cbb0ed"


@pytest.mark.parametrize(
    "other",
    [
        (b"kez", "uid", 1, "status"),
        (b"key", "uie", 1, "status"),
        (b"key", "uid", 2, "status"),
        (b"key", "uid", 1, "ray"),
    ],
)
def test_nothing_else_has_it(other: tuple[bytes, str, int, str]) -> None:
    assert derive_token(*other) != derive_token(b"key", "uid", 1, "status")


def test_parts_do_not_run_into_each_other() -> None:
    assert derive_token(b"key", "uid", 11, "s") != derive_token(b"key", "uid1", 1, "s")
