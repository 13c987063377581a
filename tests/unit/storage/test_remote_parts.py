"""Files that go to S3 in parts, through the file system that is used there and without a server."""

from __future__ import annotations

import errno
import itertools
from typing import Any

import pytest
import s3fs

from rl_trainer.storage.remote_folder import RemoteFolder

PART = 8 << 20


class Answers:
    """Of an object store, instead of a request; `calls`: what was asked."""

    def __init__(self) -> None:
        self.calls: list[tuple[str, dict[str, Any]]] = []
        self.pages: list[dict[str, Any] | Exception] = []

    def __call__(self, method: str, *_: object, **given: Any) -> dict[str, Any]:
        """As `S3FileSystem.call_s3`."""
        self.calls.append((method, given))
        if method != "list_multipart_uploads":
            return {"UploadId": "1", "ETag": "x"}
        page = self.pages.pop(0)
        if isinstance(page, Exception):
            raise page
        return page

    def of(self, method: str) -> list[dict[str, Any]]:
        """What one method was given."""
        return [given for name, given in self.calls if name == method]


@pytest.fixture
def answers(monkeypatch: pytest.MonkeyPatch) -> Answers:
    found = Answers()
    monkeypatch.setattr(s3fs.S3FileSystem, "call_s3", lambda self, *given, **named: found(*given, **named))
    return found


@pytest.mark.parametrize("size", [2 * PART, 2 * PART + 5])
def test_all_parts_but_the_last_are_of_one_size(
    answers: Answers, monkeypatch: pytest.MonkeyPatch, size: int
) -> None:
    remote = RemoteFolder("s3://bucket/run")
    monkeypatch.setattr(RemoteFolder, "size", lambda self, name: size)
    writer = remote.writer("step-00000002/model", size)
    content = bytes(range(251)) * (size // 251 + 1)
    ends = [0, 80, 3 << 20, (3 << 20) + 7, 12 << 20, size]
    for start, end in itertools.pairwise(ends):
        writer.write(memoryview(content)[start:end])
    writer.finish()
    parts = [bytes(given["Body"]) for given in answers.of("upload_part")]
    assert [len(part) for part in parts] == [PART, PART] + [5] * (size > 2 * PART)
    assert b"".join(parts) == content[:size]


def test_parts_of_other_runs_below_are_left_alone_and_all_pages_looked_at(answers: Answers) -> None:
    def page(*names: str, **more: Any) -> dict[str, Any]:
        return {"Uploads": [{"Key": f"run/{name}", "UploadId": name} for name in names], **more}

    answers.pages = [
        page(
            "step-00000002/a",
            "b/step-00000002/a",
            IsTruncated=True,
            NextKeyMarker="k",
            NextUploadIdMarker="u",
        ),
        page("step-00000004/a", "final/a", IsTruncated=False, NextKeyMarker="", NextUploadIdMarker=""),
    ]
    RemoteFolder("s3://bucket/run").abort_parts("", lambda name: name.startswith("step-"))
    asked = answers.of("list_multipart_uploads")
    assert asked == [
        {"Bucket": "bucket", "Prefix": "run/"},
        {"Bucket": "bucket", "Prefix": "run/", "KeyMarker": "k"},
    ]
    aborted = answers.of("abort_multipart_upload")
    assert [given["Key"] for given in aborted] == ["run/step-00000002/a", "run/step-00000004/a"]


def test_a_store_that_has_no_list_of_parts_or_shows_it_to_nobody(answers: Answers) -> None:
    remote = RemoteFolder("s3://bucket/run")
    answers.pages = [OSError(errno.ENOSYS, "not implemented"), PermissionError("Forbidden")]
    remote.abort_parts("")
    remote.abort_parts("")
    answers.pages = [OSError(errno.EIO, "broken")]
    with pytest.raises(OSError, match="broken"):
        remote.abort_parts("")


def test_a_writer_whose_parts_another_has_forgotten_ends_with_nothing_to_say(
    answers: Answers, monkeypatch: pytest.MonkeyPatch
) -> None:
    writer = RemoteFolder("s3://bucket/run").writer("step-00000002/model", 3 * PART)
    writer.write(bytes(PART))

    def gone(self: object) -> None:
        raise FileNotFoundError("The specified multipart upload does not exist")

    monkeypatch.setattr(type(writer._file), "discard", gone)
    writer.abort()
    assert writer._file.closed, "or it would be sent when its memory is freed"
