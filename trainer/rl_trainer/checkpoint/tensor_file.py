"""Safetensors files written piece by piece, without all tensors in memory, and without torch, so that the driver can.

The format: the length of the header (8 bytes, little endian), the header (JSON: number format, shape and place of every
tensor), then the tensors one after the other.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy.typing as npt

Shapes = Mapping[str, tuple[str, tuple[int, ...]]]
"""Number format, as safetensors files name it, and shape by name, in the order of the bytes."""

_BYTES = {"F64": 8, "I64": 8, "F32": 4, "I32": 4, "F16": 2, "BF16": 2, "I16": 2, "I8": 1, "U8": 1, "BOOL": 1}


@dataclass(frozen=True)
class TensorStream:
    """Tensors whose bytes come in pieces.

    Attributes:
        shapes: of all of them.
        chunks: their bytes, one tensor after the other in the order of `shapes`; pieces end anywhere.
    """

    shapes: Shapes
    chunks: Callable[[], Iterator[npt.NDArray[Any]]]


def byte_count(shapes: Shapes) -> int:
    """Bytes of all tensors."""
    return sum(_BYTES[kind] * math.prod(shape) for kind, shape in shapes.values())


def write_tensors(stream: TensorStream, target: Path, metadata: Mapping[str, str] | None = None) -> None:
    """Writes the file; holds one piece at a time.

    Raises:
        OSError: it cannot be written. What the stream raises comes through.
        ValueError: the bytes are more or fewer than the shapes say, or a tensor would not begin at a multiple of its width.
    """
    header: dict[str, Any] = {"__metadata__": dict(metadata)} if metadata else {}
    end = 0
    for name, (kind, shape) in stream.shapes.items():
        start, end = end, end + _BYTES[kind] * math.prod(shape)
        if start % _BYTES[kind]:
            raise ValueError(
                f"{name} ({kind}) begins at byte {start}: tensors of wide numbers must come first"
            )
        header[name] = {"dtype": kind, "shape": list(shape), "data_offsets": [start, end]}
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    with target.open("wb") as file:
        file.write(len(text).to_bytes(8, "little") + text)
        chunks: Iterator[Any] = stream.chunks()
        # Not a loop, whose variable would keep a piece while the next one is on its way.
        file.writelines(chunks)
        found = file.tell() - 8 - len(text)
    if found != end:
        raise ValueError(f"{target.name}: {found:,} bytes came instead of {end:,}")
