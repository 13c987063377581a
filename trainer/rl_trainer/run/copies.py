"""Copies of what checkpoints and run folders hold, and work that goes on beside the loop."""

from __future__ import annotations

import os
import shutil
import threading
from collections.abc import Callable
from concurrent.futures import Future
from pathlib import Path


def on_a_thread(work: Callable[[], str]) -> Future[str]:
    """What `work` gives, in the end; its thread keeps no process that ends."""
    future: Future[str] = Future()

    def run() -> None:
        try:
            future.set_result(work())
        except BaseException as error:  # for who asks
            future.set_exception(error)

    threading.Thread(target=run, name="checkpoint copy", daemon=True).start()
    return future


def link(source: str, target: str) -> None:
    """A second name for the same bytes, which nobody ever writes to; a copy where the file system has no such thing."""
    try:
        os.link(source, target)
    except OSError:
        shutil.copyfile(source, target)


def copy(source: Path, target: Path) -> None:
    """A file or a folder once more; it appears whole or not at all, so that who is killed meanwhile leaves none for the next
    attempt to find."""
    half = target.with_name(f".{target.name}.half")
    if half.is_dir():
        shutil.rmtree(half)
    if source.is_dir():
        shutil.copytree(source, half)
    else:
        shutil.copyfile(source, half)
    os.replace(half, target)
