from __future__ import annotations

import pytest

from rl_operator.decide.diagnose import exit_code, failure_sentence, last_lines, one_line


@pytest.mark.parametrize(
    ("message", "code", "sentence"),
    [
        (
            "Job entrypoint command failed with exit code 2, last available logs:\nrltrain: spec.seed: found -1\n",
            2,
            "spec.seed: found -1",
        ),
        (
            "failed with exit code 1\nTraceback\nValueError: broken",
            1,
            "failed with exit code 1 | Traceback | ValueError: broken",
        ),
        ("", None, "the job says nothing"),
    ],
)
def test_failed_jobs(message: str, code: int | None, sentence: str) -> None:
    assert exit_code(message) == code
    assert failure_sentence(message) == sentence


def test_long_texts_are_cut() -> None:
    assert len(one_line("word " * 1000)) == 600
    assert last_lines("\n".join("abcdef")) == "d | e | f"


def test_what_others_say_acts_on_nothing_that_shows_it() -> None:
    assert one_line("a\x1b[2Jb\n\u202ec\x00") == "a\ufffd[2Jb \ufffdc\ufffd"
