"""The profile of a run: kept and read again, and what is wrong with one in a sentence."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from rl_api.errors import InvalidConfig
from rl_api.planner.profile import (
    PROFILE_FILE,
    DecodeProfile,
    LearnerProfile,
    RunProfile,
    load_profile,
    save_profile,
)

PROFILE = RunProfile(
    group_size=4,
    prompts_per_step=8,
    decode=DecodeProfile(base=0.02, per_active=0.001, slots=16),
    lengths=(3, 9, 12),
    limit=12,
    prompt_tokens=5.0,
    learner=LearnerProfile(beta=0.001),
)


def _saved(folder: Path, **changes: Any) -> Path:
    path = folder / "profile.json"
    path.write_text(json.dumps(PROFILE.to_document() | changes))
    return path


def test_a_profile_is_read_as_it_was_written_by_file_and_by_folder(tmp_path: Path) -> None:
    save_profile(PROFILE, tmp_path / PROFILE_FILE)
    assert load_profile(tmp_path / PROFILE_FILE) == PROFILE
    assert load_profile(tmp_path) == PROFILE
    assert [path.name for path in tmp_path.iterdir()] == [PROFILE_FILE]


def test_names_in_the_file_are_camel_case(tmp_path: Path) -> None:
    save_profile(PROFILE, tmp_path / PROFILE_FILE)
    document = json.loads((tmp_path / PROFILE_FILE).read_text())
    assert document["promptsPerStep"] == 8
    assert document["decode"]["perActive"] == 0.001


def test_one_of_an_earlier_version_is_read(tmp_path: Path) -> None:
    devices = PROFILE.to_document().get("devices", {}) | {"learner": 2, "perNode": None}
    assert load_profile(_saved(tmp_path, devices=devices)).devices.learner == 2


def test_sums_of_a_step() -> None:
    assert PROFILE.answers == 32
    assert PROFILE.mean_length == 8.0
    assert PROFILE.tokens == 32 * 13.0


def test_a_file_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(
        InvalidConfig, match=r"^--profile: found .*profile\.json, which is not there; allowed: "
    ):
        load_profile(tmp_path / "profile.json", "--profile")
    with pytest.raises(
        InvalidConfig, match=r"^found .*, a folder without placement-profile\.json; allowed: "
    ):
        load_profile(tmp_path)


def test_a_file_that_is_no_json(tmp_path: Path) -> None:
    path = tmp_path / "profile.json"
    path.write_text("{")
    with pytest.raises(InvalidConfig, match="not valid JSON"):
        load_profile(path)
    path.write_text("[]")
    with pytest.raises(InvalidConfig, match="found no object"):
        load_profile(path)


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({"groupSize": 0}, r"groupSize: found 0, allowed: a whole number >= 1 and <= 65536"),
        ({"lengths": [13]}, r"lengths: found 13, allowed: at most limit, which is 12"),
        ({"lengths": []}, r"lengths: found an empty list"),
        ({"learner": {"beta": -1.0}}, r"learner\.beta: found -1\.0, allowed: a number >= 0"),
        ({"decode": {"base": 1.0}}, r"decode\.slots: missing, required: a whole number >= 1"),
        ({"speed": 3}, r"speed: unknown field"),
    ],
)
def test_what_is_wrong_is_one_sentence(tmp_path: Path, changes: dict[str, Any], sentence: str) -> None:
    with pytest.raises(InvalidConfig, match=sentence) as caught:
        load_profile(_saved(tmp_path, **changes))
    assert "\n" not in str(caught.value)
