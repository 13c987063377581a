"""The pipeline of `rltrain generate` on a real Ray."""

from __future__ import annotations

import json
import threading
from pathlib import Path
from typing import Any

from two_nodes import in_a_process

from rl_api.run import TinyModelSpec
from rl_trainer.model.presets import write_tiny

ROWS = 20


def test_a_closed_pipeline_leaves_no_thread_that_asks_ray(tmp_path: Path) -> None:
    write_tiny(
        tmp_path / "model", TinyModelSpec(hidden_size=32, layers=1, heads=2, max_positions=1024), seed=4
    )
    rows = (json.dumps({"prompt": f"{number}+1="}) for number in range(ROWS))
    (tmp_path / "rows.jsonl").write_text("\n".join(rows))
    in_a_process(leave, tmp_path, timeout=500)


def leave(folder: Path) -> None:
    """Closes pipelines one after the other, the first of a Ray among them, when none, some or all of its parts are there."""
    from rl_trainer.run.ray_session import ray_session

    with ray_session(1):
        for parts in (0, 1, ROWS):
            leave_after(folder, parts)


def leave_after(folder: Path, parts: int) -> None:
    """Closes one when so many of its parts are there."""
    from rl_generate.job import Options
    from rl_generate.pipeline import Pipeline, Setup
    from rl_generate.source import open_source
    from rl_trainer.model.shared_folder import share_folder

    source = open_source(str(folder / "rows.jsonl"))
    options = Options(max_new_tokens=20 if parts == ROWS else 500)
    setup = Setup(share_folder(folder / "model"), options, "jsonl", None, slots=1, threads=1, gpu=False)
    before = set(threading.enumerate())
    with Pipeline(source, source.parts(1), setup, 1) as pipeline:
        found: list[Any] = []
        for done in pipeline.done():
            # Where none is wanted the first may be there all the same, as this thread was kept waiting: it is not taken.
            found += [done] if done is not None and parts else []
            if len(found) == parts:
                break
    assert len(found) == parts
    left = {thread.name for thread in set(threading.enumerate()) - before}
    asking = {name for name in left if name == "ray data" or name.startswith("StreamingExecutor")}
    assert not asking, f"after {parts} parts: {left}"
