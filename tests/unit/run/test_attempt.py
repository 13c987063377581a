"""What an attempt leaves in its run folder, however it ends."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from rl_api import RLTrainingRun
from rl_api.errors import RunFolderBusy
from rl_trainer.observe.console import Console
from rl_trainer.run.attempt import Attempt
from rl_trainer.run.run_folder import RunFolder

RUN = RLTrainingRun.model_validate(
    {
        "apiVersion": "rltrain.dev/v1alpha1",
        "kind": "RLTrainingRun",
        "metadata": {"name": "sums"},
        "spec": {"model": {"source": "tiny"}, "task": {"environment": "reasoning-gym", "name": "chain_sum"}},
    }
)


class Trains(Attempt):
    """An attempt that does nothing."""

    def _open(self) -> None:
        self.counters.step = 4

    def _close(self) -> None:
        self.counters.step = 9


@pytest.mark.parametrize(
    ("error", "ended"),
    [
        (None, [("ended", 2, 9, "done")]),
        (KeyError("x"), [("ended", 2, 9, "KeyError")]),
        (RunFolderBusy("another one has it"), []),
    ],
)
def test_each_attempt_is_noted(
    error: Exception | None,
    ended: list[tuple[object, ...]],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("RLTRAIN_FENCE", "8c1f/2/p")
    with RunFolder(tmp_path) as folder:

        def train() -> None:
            with Trains(RUN, folder, Console("sums", max_steps=50)):
                if error is not None:
                    raise error

        if error is None:
            train()
        else:
            with pytest.raises(type(error)):
                train()
    lines = [json.loads(line) for line in (tmp_path / "attempts.jsonl").read_text().splitlines()]
    assert [(line["event"], line["attempt"], line["step"], line.get("reason")) for line in lines] == [
        ("begun", 2, 4, None),
        *ended,
    ]
