"""Tokens to text: characters that span tokens, stop texts that span tokens, and which tokens belong to which piece."""

from __future__ import annotations

import random
from collections.abc import Sequence

import pytest

from rl_serve.detokenize import Piece, TextStream, TextToken


def of_bytes(ids: Sequence[int]) -> str:
    """A tokenizer whose tokens are bytes, and 256 a special one without text."""
    return bytes(one for one in ids if one < 256).decode("utf-8", "replace")


def of_words(ids: Sequence[int]) -> str:
    """A tokenizer that writes spaces between words only: the first of a text has none."""
    return " ".join(f"w{one}" for one in ids)


def pieces(stream: TextStream, ids: Sequence[int]) -> list[Piece]:
    found = [stream.add([TextToken(one, -float(number))]) for number, one in enumerate(ids)]
    return [*found, stream.finish()]


def texts(stream: TextStream, ids: Sequence[int]) -> list[str]:
    return [piece.text for piece in pieces(stream, ids)]


def test_a_character_comes_when_its_last_byte_does() -> None:
    assert texts(TextStream(of_bytes), "aé€😀".encode()) == [
        *("a", "", "é", "", "", "€", "", "", "", "😀", ""),
    ]


def test_tokens_come_with_the_text_that_they_complete() -> None:
    found = pieces(TextStream(of_bytes), "aé!".encode())
    assert [[token.logprob for token in piece.tokens] for piece in found] == [[0], [], [-1, -2], [-3], []]
    assert [(token.start, token.end) for piece in found for token in piece.tokens] == [
        *((0, 1), (1, 2), (1, 2), (2, 3)),
    ]


def test_half_a_character_at_the_end_is_said_to_be_none() -> None:
    assert "".join(texts(TextStream(of_bytes), "a€".encode()[:-1])) == "a\N{REPLACEMENT CHARACTER}"


def test_bytes_that_are_no_character_do_not_hold_the_rest_back() -> None:
    found = texts(TextStream(of_bytes), [0xFF] * 8 + [65])
    assert "A" in "".join(found[:-1])
    assert "".join(found) == of_bytes([0xFF] * 8 + [65])


def test_a_special_token_has_no_text_and_is_not_lost() -> None:
    stream = TextStream(of_bytes)
    found = pieces(stream, [65, 256, 66])
    assert [piece.text for piece in found] == ["A", "", "B", ""]
    assert [[token.id for token in piece.tokens] for piece in found] == [[65], [256], [66], []]
    assert stream.used == 3


def test_spaces_between_words_are_kept() -> None:
    assert texts(TextStream(of_words), [1, 2, 3]) == ["w1", " w2", " w3", ""]


@pytest.mark.parametrize(
    ("text", "stop", "found"),
    [
        ("hello END more", ["END"], ["h", "e", "l", "l", "o", " ", "", "", ""]),
        ("aab", ["ab"], ["", "a", ""]),
        ("abac", ["abad"], ["", "", "", "abac"]),
        ("x", ["x"], [""]),
        ("1\n\n2", ["\n\n", "never"], ["1", "", ""]),
    ],
)
def test_a_stop_text_across_tokens_is_never_shown(text: str, stop: list[str], found: list[str]) -> None:
    stream = TextStream(of_bytes, stop)
    assert texts(stream, text.encode())[: len(found)] == found
    assert stream.stopped is any(one in text for one in stop)


def test_what_looked_like_a_stop_text_comes_when_it_is_none() -> None:
    stream = TextStream(of_bytes, ["abcd"])
    assert texts(stream, b"xabcab") == ["x", "", "", "", "abc", "", "ab"]
    assert not stream.stopped


def test_a_stop_text_within_one_token_cuts_it() -> None:
    stream = TextStream(lambda ids: "".join(f"<{one}>" for one in ids), [">"])
    piece = stream.add([TextToken(12, -1.0), TextToken(13, -2.0)])
    assert (piece.text, stream.stopped, stream.used) == ("<12", True, 1)
    assert [(token.id, token.start, token.end) for token in piece.tokens] == [(12, 0, 3)]
    assert stream.add([TextToken(14, -1.0)]) == Piece()
    assert stream.finish() == Piece()


def test_the_first_of_several_stop_texts_counts() -> None:
    stream = TextStream(lambda ids: "".join(chr(one) * 3 for one in ids), ["ab", "aaa"])
    assert stream.add([TextToken(97, 0.0), TextToken(98, 0.0)]).text == ""


def test_tokens_of_the_stop_text_are_no_part_of_the_answer() -> None:
    stream = TextStream(of_bytes, ["cd"])
    found = pieces(stream, b"abcd")
    assert [token.id for piece in found for token in piece.tokens] == [97, 98]
    assert stream.used == 4


@pytest.mark.parametrize("seed", range(30))
def test_pieces_are_the_text_up_to_the_first_stop_text(seed: int) -> None:
    generator = random.Random(seed)
    text = "".join(generator.choices("abé€😀 ", k=60))
    stop = ["".join(generator.choices("abé", k=generator.randint(1, 4))) for _ in range(2)]
    places = [place for one in stop if (place := text.find(one)) >= 0]
    stream = TextStream(of_bytes, stop)
    ids, found, tokens = list(text.encode()), "", []
    while ids:
        count = generator.randint(1, 5)
        piece = stream.add([TextToken(one, 0.0) for one in ids[:count]])
        found, ids, tokens = found + piece.text, ids[count:], [*tokens, *piece.tokens]
    piece = stream.finish()
    found, tokens = found + piece.text, [*tokens, *piece.tokens]
    # Of two stop texts the one that is complete first ends the answer; their beginnings may lie the other way round.
    assert found == text[: len(found)]
    assert stream.stopped is bool(places)
    assert not stream.stopped or any(text[len(found) :].startswith(one) for one in stop)
    assert stream.stopped or found == text
    assert all(one not in found for one in stop)
    assert bytes(token.id for token in tokens).decode("utf-8", "ignore").startswith(found)
