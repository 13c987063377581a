from __future__ import annotations

from rl_operator.model.names import attempt_name, secret_name, shorten


class TestNames:
    def test_short_ones_stay(self) -> None:
        assert attempt_name("quickstart", 12) == "quickstart-12"
        assert secret_name("quickstart") == "quickstart-status"

    def test_long_ones_keep_apart(self) -> None:
        one, other = attempt_name("a" * 46 + "x", 1), attempt_name("a" * 46 + "y", 1)
        assert len(one) == len(other) == 47
        assert one != other
        assert one.endswith("-1")
        assert attempt_name("a" * 47, 123)[-4:] == "-123"

    def test_no_hyphen_before_the_hash(self) -> None:
        assert "--" not in shorten("a" * 9 + "-" * 9, 17)
