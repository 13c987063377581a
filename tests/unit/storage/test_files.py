import math

import pytest

from rl_api.errors import RLTrainError
from rl_trainer.observe.examples import Example, read_examples, write_examples
from rl_trainer.storage.files import dump_json, read_json, write_atomic


def test_a_file_that_cannot_be_written_leaves_the_old_one(tmp_path, monkeypatch):
    path = tmp_path / "summary.json"
    write_atomic(path, "old")

    def full(descriptor):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("os.fsync", full)
    with pytest.raises(RLTrainError, match="No space left on device"):
        write_atomic(path, "new")
    assert path.read_text() == "old"
    assert [file.name for file in tmp_path.iterdir()] == ["summary.json"]


def test_json_has_no_nan_at_any_depth():
    text = dump_json({"a": [1.5, math.nan, {"b": (math.inf, "x")}], 3: True})
    assert text == '{"a":[1.5,null,{"b":[null,"x"]}],"3":true}'


def test_broken_json_is_a_sentence_and_a_missing_file_is_none(tmp_path):
    assert read_json(tmp_path / "none.json") is None
    (tmp_path / "half.json").write_text('{"a": ')
    with pytest.raises(RLTrainError, match=r"half\.json: is not readable JSON"):
        read_json(tmp_path / "half.json")


def test_examples_come_back_as_they_were_written(tmp_path):
    examples = [Example(prompt="1 + 1 =", expected="2", before="3", before_right=False)]
    write_examples(tmp_path, examples)
    assert read_examples(tmp_path) == examples


def test_a_folder_without_examples_has_none_and_a_wrong_file_is_a_sentence(tmp_path):
    assert read_examples(tmp_path) == []
    (tmp_path / "examples.json").write_text('[{"prompt": "only"}]')
    with pytest.raises(RLTrainError, match=r"examples\.json: is not a list of examples"):
        read_examples(tmp_path)
