from __future__ import annotations

from operator_worlds import refused


def test_many_problems_make_a_message_of_bounded_length() -> None:
    spec = {"sampler": {f"wrong{number}" + "x" * 50: 1 for number in range(60)}}
    message = refused(spec).message
    assert len(message) < 2100
    assert message.endswith("(60 problems)")
