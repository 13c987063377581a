"""Pins: what policy services need of a run's checkpoints, so that training does not delete it as an older one.

A service's head writes one small file into `.pins/`, beside the checkpoints, and again every minute. Others may write there,
too, so a pin can do no more than keep a few checkpoints: it has bounds, and one that is wrong is disregarded, as a sentence
says.
"""

from __future__ import annotations

import contextlib
import errno
import itertools
import json
import os
import stat
import uuid
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Annotated, Final, Protocol

from pydantic import Field

from rl_api.base import Model, Word
from rl_api.errors import InvalidConfig
from rl_api.printable import printable
from rl_api.status_fields import MOST
from rl_api.validation import parse
from rl_trainer.error_text import reason
from rl_trainer.storage.remote_folder import RemoteFolder

FOLDER: Final = ".pins"
MOST_FILES: Final = 16
"""Of more pins only those count that were renewed last."""
MOST_PINNED: Final = 4
"""Checkpoints of one pin."""
HELD_SECONDS: Final = 24 * 3600.0
"""A pin that was not renewed for longer does not count: its service is gone."""
LARGEST: Final = 4096
"""Bytes of a pin."""
# Clocks of nodes differ. What claims to be renewed still later would hold for ever.
_AHEAD_SECONDS: Final = 3600.0
# Of more names in the folder the rest is not even looked at.
_MOST_NAMES: Final = 256
_SUFFIX: Final = ".json"

Tell = Callable[[str], None]
Seconds = Annotated[float, Field(ge=0, le=MOST)]


class Pinned(Model):
    """One checkpoint that a service needs."""

    step: Annotated[int, Field(ge=0, le=MOST)]
    """Its step."""
    digest: Annotated[str, Field(pattern=r"^[0-9a-f]{64}$")]
    """SHA-256 of its manifest: another checkpoint of the step is not meant."""
    asked: Seconds
    """When the service asked for it last, in seconds since 1970."""
    candidate: bool = False
    """It was evaluated, and never served."""


class Pin(Model):
    """What one service needs."""

    service: Word
    """Its name, for who looks into the file."""
    renewed: Seconds
    """When its head wrote this, in seconds since 1970."""
    checkpoints: Annotated[list[Pinned], Field(max_length=MOST_PINNED)]
    """In no order."""


class PinPlace(Protocol):
    """Where the pins of one run lie. Errors: OSError, and CheckpointError of an object store."""

    def names(self) -> list[str]:
        """Names of pins, at most as many as are looked at."""

    def read(self, name: str) -> bytes | None:
        """Content of a pin; None: it is not there. Raises OSError for one that is larger than `LARGEST`, or no file."""

    def write(self, name: str, content: bytes) -> None:
        """Replace a pin, whole or not at all."""


class LocalPins:
    """Those of a folder of checkpoints on a disk. Whoever shares the disk may have put anything under their names."""

    def __init__(self, checkpoints: Path) -> None:
        self._checkpoints = checkpoints
        self._folder = checkpoints / FOLDER

    def names(self) -> list[str]:
        """Names of pins, at most as many as are looked at."""
        try:
            with os.scandir(self._folder) as found:
                return _of_pins([one.name for one in itertools.islice(found, _MOST_NAMES)])
        except FileNotFoundError:
            return []

    def read(self, name: str) -> bytes | None:
        """Content of a pin; None: it is not there. Raises OSError for one that is larger than `LARGEST`, or no file."""
        try:  # a pipe without a writer would be waited for, a link lead elsewhere
            descriptor = os.open(self._folder / name, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
        except FileNotFoundError:
            return None
        with open(descriptor, "rb") as file:
            if not stat.S_ISREG(os.fstat(descriptor).st_mode):
                raise OSError(errno.EINVAL, "it is no file")
            content = file.read(LARGEST + 1)
        _check_size(len(content))
        return content

    def write(self, name: str, content: bytes) -> None:
        """Replace a pin, whole or not at all. Raises OSError where there are no checkpoints, or they cannot be written."""
        if self._folder.is_symlink():
            raise OSError(errno.ELOOP, f"{FOLDER} is a symbolic link")
        with contextlib.suppress(FileExistsError):
            self._folder.mkdir()
        temporary = self._folder / f".{uuid.uuid4().hex}"
        try:
            with temporary.open("xb") as file:
                file.write(content)
            temporary.replace(self._folder / name)
        except OSError:
            temporary.unlink(missing_ok=True)
            raise


class RemotePins:
    """Those of a folder of checkpoints in an object store; called within `RemoteFolder.within`."""

    def __init__(self, remote: RemoteFolder) -> None:
        self._remote = remote

    def names(self) -> list[str]:
        """Names of pins, at most as many as are looked at."""
        return _of_pins(self._remote.names(FOLDER))[:_MOST_NAMES]

    def read(self, name: str) -> bytes | None:
        """Content of a pin; None: it is not there. Raises OSError for one that is larger than `LARGEST`."""
        path = f"{FOLDER}/{name}"
        try:
            _check_size(self._remote.size(path))
        except FileNotFoundError:
            return None
        return self._remote.read(path)

    def write(self, name: str, content: bytes) -> None:
        """Replace a pin: an object is whole or not there."""
        self._remote.write(f"{FOLDER}/{name}", content)


def pinned(place: PinPlace, now: float, tell: Tell) -> frozenset[tuple[int, str]]:
    """Step and digest of every checkpoint in `place` that a service needs.

    What cannot be read there is told and disregarded: a pin must not stop a run, nor fill its disk.

    Args:
        now: seconds since 1970.
    """
    pins: dict[str, Pin] = {}
    try:
        for name in place.names():
            try:
                content = place.read(name)
                if content is not None:
                    pins[name] = parse_pin(content)
            except (OSError, InvalidConfig) as error:
                _disregarded(name, error, tell)
    except OSError as error:
        tell(
            f"the pins of services cannot be read ({reason(error)}): their checkpoints are not kept for them"
        )
    return held(pins, now, tell)


def held(pins: Mapping[str, Pin], now: float, tell: Tell) -> frozenset[tuple[int, str]]:
    """Step and digest of what pins, by their names, hold `now`. Pure."""
    count = {name: pin for name, pin in pins.items() if now - pin.renewed <= HELD_SECONDS}
    for name in [name for name, pin in count.items() if pin.renewed - now > _AHEAD_SECONDS]:
        del count[name]
        _disregarded(name, "it claims to have been renewed in the future", tell)
    last = sorted(count.values(), key=lambda pin: pin.renewed, reverse=True)
    if len(last) > MOST_FILES:
        tell(f"{len(last)} services have pinned checkpoints, allowed: {MOST_FILES}; those renewed last count")
    return frozenset((one.step, one.digest) for pin in last[:MOST_FILES] for one in pin.checkpoints)


def parse_pin(content: bytes) -> Pin:
    """A pin from its bytes. Raises InvalidConfig."""
    try:
        found = json.loads(content)
    except (ValueError, RecursionError):
        raise InvalidConfig("it is no JSON") from None
    if not isinstance(found, dict):
        raise InvalidConfig("it is no JSON object")
    return parse(Pin, found, "pin")


def dump_pin(pin: Pin) -> bytes:
    """A pin as `parse_pin` reads it."""
    return json.dumps(pin.model_dump(mode="json", by_alias=True)).encode()


def _of_pins(names: list[str]) -> list[str]:
    return sorted(name for name in names if name.endswith(_SUFFIX) and not name.startswith("."))


def _check_size(size: int) -> None:
    if size > LARGEST:
        raise OSError(errno.EFBIG, f"it is larger than {LARGEST:,} bytes")


def _disregarded(name: str, why: object, tell: Tell) -> None:
    text = reason(why) if isinstance(why, OSError) else why
    tell(f"{FOLDER}/{printable(name, 80)} is disregarded: {printable(text, 200)}")
