"""Places: who gets one, who is refused and when to come back. And API keys."""

from __future__ import annotations

import random
from collections import deque
from pathlib import Path

import pytest

from rl_api.errors import InvalidConfig
from rl_serve.admission import Admission
from rl_serve.errors import ApiError
from rl_serve.keys import check_key, read_keys

KEY = "sk-0123456789abcdef"


def test_slots_and_queue_are_places() -> None:
    admission = Admission(slots=2, queue=1)
    admission.admit(2)
    assert not admission.full
    admission.admit(1)
    assert admission.full
    with pytest.raises(ApiError) as refused:
        admission.admit(1)
    assert (refused.value.status, refused.value.retry_after) == (429, 1)
    assert "3 of 3 places are taken and this request needs 1" in refused.value.message
    admission.release(2, 1.0)
    admission.admit(2)


def test_a_request_of_several_gets_all_its_places_or_none() -> None:
    admission = Admission(slots=4, queue=0)
    admission.admit(3)
    with pytest.raises(ApiError):
        admission.admit(2)
    assert admission.taken == 3


def test_who_is_refused_comes_back_when_a_place_is_likely_to_be_free() -> None:
    admission = Admission(slots=1, queue=8)
    for _ in range(100):
        admission.admit(1)
        admission.release(1, 30.0)
    admission.admit(9)
    assert 25 <= admission.retry_after() <= 30
    for _ in range(100):
        admission.release(0, 10_000.0)
    assert admission.retry_after() == 60


def under_load(admission: Admission, rate: float, timeout: float, seed: int = 0) -> tuple[int, int, int]:
    """(answered, late, refused) of `rate` requests a second for 300 s; each takes about a second of a slot."""
    generator = random.Random(seed)
    tick = 0.02
    waiting: deque[float] = deque()
    writing: list[tuple[float, float, float]] = []  # came, began, takes
    answered = late = refused = 0
    for now in (tick * number for number in range(15_000)):
        for came, began, takes in list(writing):
            if (ended := now - began >= takes) or now - came >= timeout:
                writing.remove((came, began, takes))
                admission.release(1, now - came)
                admission.wrote(now - began, ended)
                answered, late = answered + ended, late + (not ended)
        while waiting and now - waiting[0] >= timeout:
            admission.release(1, now - waiting.popleft())
            late += 1
        while waiting and len(writing) < admission.slots:
            writing.append((waiting.popleft(), now, generator.uniform(0.5, 1.5)))
        if generator.random() < rate * tick:
            try:
                admission.admit(1)
                waiting.append(now)
            except ApiError:
                refused += 1
    return answered, late, refused


@pytest.mark.parametrize("load", [1.5, 3.0])
def test_under_a_load_that_does_not_end_slots_write_what_somebody_gets(load: float) -> None:
    slots, timeout = 4, 10.0
    most = 300 * slots
    answered, late, _ = under_load(Admission(slots, 100_000), load * slots, timeout)
    assert answered < 0.55 * most, "where everybody is let in, most slots write what nobody gets"
    assert late > 0.9 * most
    answered, late, refused = under_load(Admission(slots, 100_000, timeout), load * slots, timeout)
    assert answered > 0.85 * most
    assert late < 0.2 * answered
    assert refused > 0.9 * (load - 1) * most


def test_what_takes_longer_than_its_deadline_is_still_tried() -> None:
    admission = Admission(slots=2, queue=100, timeout=10.0)
    admission.wrote(12.0, ended=False)
    admission.admit(2)
    with pytest.raises(
        ApiError, match=r"ready after about 18 seconds, and may take 10; try again later"
    ) as refused:
        admission.admit(1)
    assert (refused.value.status, refused.value.code, refused.value.retry_after) == (429, "queue_full", 8)
    for _ in range(20):
        admission.wrote(1.0, ended=True)
    admission.admit(1)


@pytest.mark.parametrize("seed", range(10))
def test_places_are_never_exceeded_nor_lost(seed: int) -> None:
    generator = random.Random(seed)
    admission, held = Admission(slots=5, queue=5), []
    for _ in range(500):
        if held and generator.random() < 0.5:
            admission.release(held.pop(generator.randrange(len(held))), generator.random())
        else:
            count = generator.randint(1, 4)
            if sum(held) + count <= admission.places:
                admission.admit(count)
                held.append(count)
            else:
                with pytest.raises(ApiError):
                    admission.admit(count)
                assert 1 <= admission.retry_after() <= 60
        assert admission.taken == sum(held) <= admission.places


def test_keys_are_lines(tmp_path: Path) -> None:
    file = tmp_path / "keys"
    file.write_text(f"# a client\n\n  {KEY}  \nanother-key-of-some-length\n")
    keys = read_keys(file)
    assert len(keys) == 2
    assert all(KEY not in digest for digest in keys)
    check_key(f"Bearer {KEY}", keys)
    check_key(f"bearer  {KEY}", keys)
    check_key(None, None)


@pytest.mark.parametrize(
    ("header", "sentence"),
    [
        (None, "found no API key"),
        (f"Basic {KEY}", "found no API key"),
        (KEY, "found no API key"),
        ("Bearer other", "found a key that is not known"),
        ("Bearer ", "found a key that is not known"),
    ],
)
def test_who_has_no_key_is_refused(tmp_path: Path, header: str | None, sentence: str) -> None:
    file = tmp_path / "keys"
    file.write_text(KEY)
    with pytest.raises(ApiError, match=sentence) as refused:
        check_key(header, read_keys(file))
    assert (refused.value.status, refused.value.code) == (401, "invalid_api_key")


@pytest.mark.parametrize(
    ("content", "sentence"),
    [
        (None, "cannot be read"),
        (b"\xff\xff", "cannot be read"),
        (b"# nothing\n", "has no key"),
        (b"short\n", "too short"),
        (b"two words that are long enough\n", "too short or no key"),
    ],
)
def test_a_file_without_good_keys(tmp_path: Path, content: bytes | None, sentence: str) -> None:
    file = tmp_path / "keys"
    if content is not None:
        file.write_bytes(content)
    with pytest.raises(InvalidConfig, match=sentence):
        read_keys(file)
