"""Who of a node's processes looks whether what lies in their object store is right: one of them, and the others believe it.

What was found right is marked, in one of a few slots. A mark counts only as long as somebody keeps what it is of: then the
store neither frees it nor puts it elsewhere, and who has it too reads the same bytes of the same sealed object. What is
wrong has no mark, so that everybody finds it. No Ray and no files here: how slots are shared is `shared_marks.py`.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from hashlib import blake2b
from typing import Final, Literal, Protocol

MARK_BYTES: Final = 32
# Of more marks in a group than it has slots everybody checks the rest; a few versions of a hundred blocks do not get there.
GROUPS: Final = 512
SLOTS_OF_GROUP: Final = 8
# For those who are looking, in all. It takes milliseconds; who has been stopped would never be done.
WAIT_SECONDS: Final = 0.25
_PAUSE_SECONDS: Final = 0.0005

Step = Literal["believe", "check and mark", "check"]


@dataclass(frozen=True)
class Wanted:
    """What is to be right.

    Attributes:
        holder: as long as it lives, its bytes stay where they are.
        mark: see `mark_of`; None: they are this process's own, and nobody else knows of them.
        check: looks, and raises where they are wrong.
    """

    holder: object
    mark: bytes | None
    check: Callable[[], None]


class Marks(Protocol):
    """Slots that the processes of a node share; each has a mark. All of it may raise OSError."""

    def take(self, group: int) -> bool:
        """Is the only one at a group of slots until `leave`, or its death; False: somebody else is. The rest needs it."""
        ...

    def leave(self, group: int) -> None:
        """Ends `take`."""
        ...

    def read(self, slot: int) -> bytes:
        """The mark of a slot."""
        ...

    def write(self, slot: int, mark: bytes) -> None:
        """Gives it another one; nobody keeps what the one before was of."""
        ...

    def is_kept(self, slot: int) -> bool:
        """Whether somebody keeps what the mark of a slot is of."""
        ...

    def keep(self, slot: int, holder: object) -> None:
        """Keeps it for as long as `holder` lives, and this process."""
        ...


def mark_of(handle: str, checksum: int, place: str | None) -> bytes | None:
    """Names one sealed object, where it lies (None: not in the node's store) and what it is to be."""
    if place is None:
        return None
    return blake2b(f"{handle} {checksum} {place}".encode(), digest_size=MARK_BYTES).digest()


def group_of(mark: bytes) -> int:
    """Where it is, if it is anywhere."""
    return int.from_bytes(mark[:8], "little") % GROUPS


def slots_of(group: int) -> range:
    """Those of a group."""
    return range(group * SLOTS_OF_GROUP, (group + 1) * SLOTS_OF_GROUP)


def decide(mark: bytes, found: Sequence[bytes], is_kept: Callable[[int], bool]) -> tuple[Step, int]:
    """What is to be done with what `mark` names, and by which of the marks of its group.

    Args:
        mark: of it.
        found: the marks that are there.
        is_kept: whether somebody keeps what one of them is of, by its number. What nobody keeps may be another copy since,
            and its slot is free.
    """
    for number, other in enumerate(found):
        if other == mark and is_kept(number):
            return "believe", number
    free = next((number for number in range(len(found)) if not is_kept(number)), None)
    return ("check", 0) if free is None else ("check and mark", free)


def check_once(
    wanted: Sequence[Wanted],
    marks: Marks | None,
    clock: Callable[[], float] = time.monotonic,
    pause: Callable[[float], None] = time.sleep,
) -> None:
    """Returns when all that is wanted is right, by this process's own check or another's; raises as `Wanted.check` does.

    What somebody else is looking at is left for last, and not waited for longer than `WAIT_SECONDS`: then it is checked here
    as well. `marks`: None: there are none, and everything is checked here.
    """
    left = [one for one in wanted if not _settle(one, marks)]
    deadline = clock() + WAIT_SECONDS
    while left and clock() < deadline:
        pause(_PAUSE_SECONDS)
        left = [one for one in left if not _settle(one, marks)]
    for one in left:
        one.check()


def _settle(one: Wanted, marks: Marks | None) -> bool:
    """Whether it is known to be right now; False: somebody else is looking."""
    if marks is not None and one.mark is not None:
        try:
            return _settle_with_others(one, one.mark, marks)
        except OSError:  # of the marks; then it is as if there were none
            pass
    one.check()
    return True


def _settle_with_others(one: Wanted, mark: bytes, marks: Marks) -> bool:
    group, taken = group_of(mark), False
    try:
        taken = marks.take(group)
        if not taken:
            return False
        slots = slots_of(group)
        found = [marks.read(slot) for slot in slots]
        step, number = decide(mark, found, lambda number: marks.is_kept(slots[number]))
        if step == "check and mark":
            one.check()
            marks.write(slots[number], mark)
        if step != "check":
            # After the mark: what an earlier one was of must not seem to be kept.
            marks.keep(slots[number], one.holder)
    finally:
        if taken:
            marks.leave(group)
    if step == "check":
        one.check()
    return True
