"""`task.dataset`: rows of a data set, by Hugging Face's library datasets."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import datasets
import pyarrow as pa

from rl_api.errors import TaskError
from rl_api.task import DatasetSpec
from rl_trainer.error_text import first_line
from rl_trainer.tasks.arrow_rows import WINDOW, table_rows
from rl_trainer.tasks.rows import PromptData


def read_dataset(spec: DatasetSpec, folder: Path | None) -> PromptData:
    """All rows of a data set; what the library makes of it is in its own cache.

    Args:
        spec: `spec.task.dataset`.
        folder: where it is, if it is a folder; None: on the hub, or in the hub's cache.

    Raises:
        TaskError: it cannot be had.
    """
    datasets.disable_progress_bars()
    datasets.logging.set_verbosity_error()
    try:
        found = _saved(folder, spec.split) if folder is not None else None
        if found is None:
            found = datasets.load_dataset(
                str(folder or spec.name),
                spec.config,
                split=spec.split,
                revision=None if folder is not None else spec.revision,
            )
        schema: pa.Schema = found.features.arrow_schema
        rows, digest = table_rows(spec.name, schema, _tables(found))
    except TaskError:
        raise
    except Exception as error:  # the library, the hub's and Arrow's
        where = "config and split" if folder is not None else "name, config and split, and at the network"
        raise TaskError(
            f"task.dataset: {spec.name} cannot be loaded: {first_line(error)}. Look at {where}"
        ) from error
    return PromptData(rows, digest)


def _saved(folder: Path, split: str) -> Any:
    """The rows of a split, or of a part of one, that `save_to_disk` has left in the folder; None: it holds other files."""
    if (folder / "dataset_dict.json").is_file():
        return _part(dict(datasets.load_from_disk(str(folder))), split)
    if (folder / "state.json").is_file():
        # It is one split, whose name it may have kept; who asks for none asks for train.
        only = datasets.load_from_disk(str(folder))
        return _part({"train": only} | ({} if only.split is None else {str(only.split): only}), split)
    return None


def _part(splits: dict[str, Any], split: str) -> Any:
    part = splits.get(split)
    if part is None:
        try:
            # The same words and rounding as for a data set of the hub.
            asked = datasets.ReadInstruction.from_spec(split)
            pieces = asked.to_absolute({name: len(rows) for name, rows in splits.items()})
        except ValueError:
            raise TaskError(
                f"task.dataset.split: found {split!r}, allowed: {', '.join(sorted(splits))}, or a part of one by rows or "
                "percent, such as train[:1000] or train[:10%]"
            ) from None
        part = datasets.concatenate_datasets(
            [splits[piece.splitname].select(range(piece.from_, piece.to)) for piece in pieces]
        )
    if len(part) == 0:
        raise TaskError(f"task.dataset.split: {split!r} has no row, allowed: one prompt per row")
    return part


def _tables(found: Any) -> Iterator[pa.Table]:
    yield from found.with_format("arrow").iter(batch_size=WINDOW)
