"""`examples.json`: the same prompts answered before and after training, for a person to read."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass, fields
from pathlib import Path

from rl_api.errors import RLTrainError
from rl_trainer.storage.files import dump_json, read_json, write_atomic

EXAMPLES_FILE = "examples.json"


@dataclass(frozen=True, slots=True, kw_only=True)
class Example:
    """One held-out prompt with the policy's greedy answers; None: not taken, or not known."""

    prompt: str
    expected: str
    before: str | None = None  # answer at the start of reinforcement learning
    after: str | None = None  # answer at the end
    before_right: bool | None = None  # whether it is exactly right
    after_right: bool | None = None


def write_examples(run_folder: Path | str, examples: Sequence[Example]) -> None:
    """Write `examples.json` atomically; first with `before` only, at the end with both.

    Raises:
        RLTrainError: the file cannot be written.
    """
    path = Path(run_folder) / EXAMPLES_FILE
    write_atomic(path, dump_json([asdict(example) for example in examples], indent=2) + "\n")


def read_examples(run_folder: Path | str) -> list[Example]:
    """Return the examples of a run folder, empty when there are none yet.

    Raises:
        RLTrainError: the file is not what `write_examples` writes.
    """
    path = Path(run_folder) / EXAMPLES_FILE
    known = {field.name for field in fields(Example)}
    try:
        return [Example(**{k: v for k, v in item.items() if k in known}) for item in read_json(path) or []]
    except (TypeError, AttributeError) as error:
        raise RLTrainError(f"{path}: is not a list of examples ({error}); remove it to go without") from error
