"""Text that steers terminals or misleads readers, and how one knows that none has come through."""

from __future__ import annotations

import unicodedata

from hypothesis import strategies as st

_BIDI = frozenset({"LRE", "RLE", "LRO", "RLO", "PDF", "LRI", "RLI", "FSI", "PDI"})
_MARKS = frozenset("\u061c\u200e\u200f\ufeff\u200b\u2060\u00ad")

TRICKS = (
    "\x1b[2J\x1b[H",
    "\x1b]0;title\x07",
    "\x1b]8;;http://evil.example\x1b\\click\x1b]8;;\x1b\\",
    "\x1b\x1b[m[31m",
    "\x1b]52;c;cm0gLXJm\x07",
    "\x9b31m",
    "\x90q\x9c",
    "done\rrun succeeded",
    "\x08\x08\x08\x7f",
    "\u202etxt.exe\u202c",
    "\u2066\u2069\u200f\u061c",
    "\u2028\u2029\u0085",
    "\x00\x07\x0e",
    "\ud800\udfff",
    "\U000e0041\ufeff\u200b",
    "</script><script>alert(1)</script>",
)

HOSTILE = st.lists(
    st.one_of(
        st.sampled_from(TRICKS), st.text(max_size=8), st.characters(categories=["Cc", "Cf", "Cs", "Zl", "Zp"])
    ),
    min_size=1,
    max_size=8,
).map("".join)


def steering(text: str) -> list[str]:
    """The characters of a text that do more than to be shown; tab and line feed, and what joins letters, do not count."""
    return [
        character
        for character in text
        if (unicodedata.category(character) in ("Cc", "Cs", "Zl", "Zp") and character not in "\n\t")
        or unicodedata.bidirectional(character) in _BIDI
        or character in _MARKS
        or 0xE0000 <= ord(character) <= 0xE007F
    ]
