import hashlib
import json

import pytest

from rl_api.errors import TaskError
from rl_api.task import TaskSpec
from rl_trainer.tasks.prompts import read_prompt
from rl_trainer.tasks.sources import read_data


def read_file(file, search):
    return read_data(TaskSpec(environment="prompts", file=file), search)


def read(tmp_path, content, needs_answer=True, **fields):
    file = tmp_path / "data.jsonl"
    if isinstance(content, list):
        content = "".join(json.dumps(line) + "\n" for line in content)
    file.write_bytes(content if isinstance(content, bytes) else content.encode())
    names = {"prompt_field": "prompt", "answer_field": "answer"} | fields
    rows = read_file("data.jsonl", tmp_path).rows
    return [read_prompt(row, **names, needs_answer=needs_answer) for row in rows]


def test_lines_with_all_their_fields(tmp_path):
    items = read(
        tmp_path, '\ufeff{"prompt": "1+1", "answer": "2", "level": 1}\r\n\n{"prompt": "1+2", "answer": 3}'
    )
    assert [(item.question, item.answer) for item in items] == [("1+1", "2"), ("1+2", "3")]
    assert items[0].fields == {"prompt": "1+1", "answer": "2", "level": 1}


def test_line_separators_inside_a_string_do_not_split_it(tmp_path):
    (item,) = read(tmp_path, '{"prompt": "a\u2028b\u0085c", "answer": "2"}\n')
    assert item.question == "a\u2028b\u0085c"


def test_other_field_names(tmp_path):
    (item,) = read(tmp_path, [{"q": "1+1", "a": 2.5}], prompt_field="q", answer_field="a")
    assert (item.question, item.answer) == ("1+1", "2.5")


def test_a_chat(tmp_path):
    chat = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "Hi", "name": "x"}]
    (item,) = read(tmp_path, [{"prompt": chat, "answer": "Hello"}])
    assert item.question == ({"role": "system", "content": "Be brief."}, {"role": "user", "content": "Hi"})


def test_without_answers_where_none_is_needed(tmp_path):
    items = read(
        tmp_path, [{"prompt": "a"}, {"prompt": "b", "answer": None}, {"prompt": "c", "answer": "x"}], False
    )
    assert [item.answer for item in items] == [None, None, "x"]


GOOD = '{"prompt": "1+1", "answer": "2"}\n'


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("", r"task.file: data.jsonl is empty; it needs one JSON object per line"),
        ("\n \n", r"task.file: data.jsonl is empty"),
        (GOOD + "{'prompt': 1}", r"data.jsonl:2: not a JSON object \(.* at character 2\): \"{'prompt': 1}\""),
        (GOOD + "\n" + "x" * 90, r"data.jsonl:3: not a JSON object .*: 'x{57}\.\.\.'"),
        ("[" * 100000, r"data.jsonl:1: not a JSON object"),
        ('["a"]', r"data.jsonl:1: found a JSON list, allowed: an object"),
        ("null", r"data.jsonl:1: found a JSON null, allowed: an object"),
        (b"\n\xff\xfe{}", r"data.jsonl:2: not UTF-8 text \(invalid start byte at byte 0 of the line\)"),
        (
            '{"question": "a", "answer": "b"}',
            r"data.jsonl:1: there is no field 'prompt' \(task.promptField\), the line has: question, answer",
        ),
        (
            GOOD + '{"prompt": "a"}',
            r"data.jsonl:2: there is no field 'answer' \(task.answerField\), the line has: prompt",
        ),
        ("{}", r"there is no field 'prompt' \(task.promptField\), the line has: no fields"),
        (
            '{"prompt": " ", "answer": "b"}',
            r"data.jsonl:1: field 'prompt' is empty, allowed: text that is not empty, or chat",
        ),
        ('{"prompt": 3, "answer": "b"}', r"data.jsonl:1: field 'prompt' is 3, allowed: text"),
        ('{"prompt": [], "answer": "b"}', r"data.jsonl:1: field 'prompt' is empty, allowed"),
        (
            '{"prompt": ["a"], "answer": "b"}',
            r"data.jsonl:1: field 'prompt', message 0: found 'a', allowed: {\"role\"",
        ),
        ('{"prompt": [{"role": "user"}], "answer": "b"}', r"message 0: found {'role': 'user'}, allowed"),
        (
            '{"prompt": [{"role": "assistant", "content": "a"}], "answer": "b"}',
            r"the last message is the assistant's",
        ),
        (
            '{"prompt": "a", "answer": {"x": 1}}',
            r"data.jsonl:1: field 'answer' is {'x': 1}, allowed: text or a number",
        ),
        (
            '{"prompt": "a", "answer": null}',
            r"data.jsonl:1: field 'answer' is empty, allowed: text or a number",
        ),
    ],
)
def test_errors_name_file_and_line(tmp_path, content, message):
    with pytest.raises(TaskError, match=message):
        read(tmp_path, content)


def test_a_file_in_the_working_directory(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "here.jsonl").write_text(GOOD)
    for name in ("here.jsonl", str(tmp_path / "here.jsonl")):
        found = read_file(name, tmp_path / "elsewhere")
        assert [row.fields for row in found.rows] == [json.loads(GOOD)]
        assert found.digest == hashlib.sha256(GOOD.encode()).hexdigest()


def test_a_missing_file_names_the_places(tmp_path):
    with pytest.raises(
        TaskError, match=r"there is no file no.jsonl, neither beside the run file \(.*\) nor in the working"
    ):
        read_file("no.jsonl", tmp_path)
    with pytest.raises(TaskError, match=r"there is no file no.jsonl$"):
        read_file("no.jsonl", None)


def test_a_uri(tmp_path, any_scheme):
    (tmp_path / "data.jsonl").write_text(GOOD)
    (row,) = read_file(f"file://{tmp_path}/data.jsonl", None).rows
    assert row == (f"file://{tmp_path}/data.jsonl:1", json.loads(GOOD))


@pytest.mark.parametrize(
    ("uri", "message"),
    [
        (
            "file:///etc/passwd",
            r"task.file: found 'file:///etc/passwd', allowed: s3://bucket/folder, no",
        ),
        ("nope://x", r"task.file: found 'nope://x', allowed: s3://bucket/folder, no"),
        ("http://169.254.169.254/x", r"task.file: found 'http://169.254.169.254/x', allowed: "),
        ("zip://a::s3://b/c", r"task.file: found 'zip://a::s3://b/c', allowed: "),
        ("s3://b/../c", r"task.file: found 's3://b/../c', allowed: "),
    ],
)
def test_uris_that_cannot_be_read(uri, message):
    with pytest.raises(TaskError, match=message):
        read_file(uri, None)


def test_a_store_that_has_no_such_file(any_scheme):
    with pytest.raises(TaskError, match=r"task.file: file:///not/there.jsonl cannot be read: "):
        read_file("file:///not/there.jsonl", None)


class Bucket:
    """What fsspec's file system for S3 does with objects, for someone with some rights."""

    def __init__(self, objects, *, may_list=True, may_read=True):
        self.objects, self.may_list, self.may_read = objects, may_list, may_read

    def find(self, place):
        if not self.may_list:
            raise PermissionError("Access Denied")
        below = [name for name in self.objects if name.startswith(f"{place}/")]
        return sorted(below) or [name for name in self.objects if name == place]

    def cat_file(self, place):
        if not self.may_read or (place not in self.objects and not self.may_list):
            raise PermissionError("Access Denied")
        if place not in self.objects:
            raise FileNotFoundError(place)
        return self.objects[place]


@pytest.fixture
def bucket(monkeypatch):
    import fsspec

    def made(*args, **rights):
        store = Bucket(*args, **rights)
        monkeypatch.setattr(fsspec.core, "url_to_fs", lambda uri: (store, uri.removeprefix("s3://")))

    return made


@pytest.mark.parametrize("name", ["data.jsonl", "data"])
def test_a_file_in_a_bucket_that_may_not_be_listed(bucket, name):
    bucket({f"b/{name}": GOOD.encode()}, may_list=False)
    found = read_file(f"s3://b/{name}", None)
    assert [row.where for row in found.rows] == [f"s3://b/{name}:1"]
    assert found.digest == hashlib.sha256(GOOD.encode()).hexdigest()
    for missing in ("other.jsonl", "other"):
        with pytest.raises(
            TaskError, match=f"s3://b/{missing} cannot be read: Access Denied. Look at bucket"
        ):
            read_file(f"s3://b/{missing}", None)


@pytest.mark.parametrize("folder", ["shards", "shards.jsonl", "shards.jsonl/"])
def test_a_folder_in_a_bucket(bucket, folder):
    root = f"b/{folder.rstrip('/')}"
    objects = {f"{root}/a.jsonl": GOOD.encode(), f"{root}/sub/b.jsonl": GOOD.encode()}
    bucket(objects)
    plain = read_file(f"s3://b/{folder}", None)
    assert [row.where for row in plain.rows] == [f"s3://{root}/a.jsonl:1", f"s3://{root}/sub/b.jsonl:1"]
    bucket({f"{root}/": b"", f"{root}/sub/": b"", **objects})
    assert read_file(f"s3://b/{folder}", None).digest == plain.digest
    bucket({f"{root}/": b"", f"{root}/sub/": b""})
    with pytest.raises(TaskError, match=f"task.file: s3://b/{folder} holds no file, allowed: "):
        read_file(f"s3://b/{folder}", None)


def test_what_a_bucket_does_not_hold_or_show(bucket):
    for name in ("none.jsonl", "none", "none/"):
        bucket({})
        with pytest.raises(TaskError, match=f"s3://b/{name} cannot be read: b/none"):
            read_file(f"s3://b/{name}", None)
    for name in ("data.jsonl", "data"):
        bucket({f"b/{name}": GOOD.encode()}, may_read=False)
        with pytest.raises(TaskError, match=f"s3://b/{name} cannot be read: Access Denied"):
            read_file(f"s3://b/{name}", None)


def test_a_store_that_does_not_answer(monkeypatch):
    import threading

    import fsspec

    release = threading.Event()
    monkeypatch.setattr(fsspec.core, "url_to_fs", lambda *_: release.wait())
    monkeypatch.setattr("rl_trainer.tasks.sources.READ_SECONDS", 0.05)
    with pytest.raises(TaskError, match=r"task.file: s3://slow was not read after 0 s; check the network"):
        read_file("s3://slow", None)
    release.set()


def test_a_store_whose_package_is_missing(monkeypatch):
    import fsspec

    def missing(*_):
        raise ImportError("Install s3fs to access S3")

    monkeypatch.setattr(fsspec.core, "url_to_fs", missing)
    with pytest.raises(TaskError, match="s3://x needs a package that is not installed: Install s3fs"):
        read_file("s3://x", None)
