"""What an attempt leaves in its run folder, however it ends."""

from __future__ import annotations

import json
from contextlib import suppress
from pathlib import Path

import pytest

from rl_api import RLTrainingRun
from rl_api.errors import RunFolderBusy
from rl_api.progress import SPEC_HASH_VARIABLE
from rl_trainer.observe.console import Console
from rl_trainer.placement.held_time import HeldTime, Nodes
from rl_trainer.run.attempt import Attempt
from rl_trainer.run.attempts_file import learner_gpus
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
        self.learner_gpus = True

    def _close(self, error: BaseException | None) -> None:
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
    assert learner_gpus(tmp_path) is lines[0]["learner_gpus"] is True
    (tmp_path / "attempts.jsonl").write_text('{"event": "begun"}\n{"learner_gpus": tr')
    assert learner_gpus(tmp_path) is learner_gpus(tmp_path / "none") is None


class Gives(Trains):
    """An attempt that asks at its end what has ended it."""

    def _open(self) -> None:
        self.found: list[BaseException | None] = []
        self._stack.callback(lambda: self.found.append(self.ended_by))
        super()._open()


def test_who_is_called_at_the_end_knows_why(tmp_path: Path) -> None:
    def found(error: Exception | None, opens: bool) -> list[BaseException | None]:
        with RunFolder(tmp_path, overwrite=True) as folder:
            attempt = Gives(RUN, folder, Console("sums", max_steps=50))
            if not opens:
                attempt._note = broken  # type: ignore[method-assign]
            with suppress(KeyError), attempt:
                if error is not None:
                    raise error
            return attempt.found

    def broken(*_: object, **__: object) -> None:
        raise early

    late, early = KeyError("while it trains"), KeyError("while it starts")
    assert found(None, opens=True) == [None]
    assert found(late, opens=True) == [late]
    assert found(None, opens=False) == [early]


class Holds(Trains):
    """An attempt that holds four accelerators of two pods for 90 s."""

    def _open(self) -> None:
        super()._open()
        times = iter((10.0, 100.0))
        self.held = HeldTime(lambda: Nodes(4.0, 2), lambda: next(times))


@pytest.mark.parametrize(
    ("kind", "spec_hash", "held"),
    [(Holds, "5f2a9d0c1b7e3846", (360.0, 180.0)), (Trains, None, (None, None))],
)
def test_what_was_trained_and_what_it_held_stays_when_the_object_is_gone(
    kind: type[Trains],
    spec_hash: str | None,
    held: tuple[float | None, float | None],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.delenv(SPEC_HASH_VARIABLE, raising=False)
    if spec_hash is not None:
        monkeypatch.setenv(SPEC_HASH_VARIABLE, spec_hash)
    with RunFolder(tmp_path) as folder, kind(RUN, folder, Console("sums", max_steps=50)):
        pass
    begun, ended = (json.loads(line) for line in (tmp_path / "attempts.jsonl").read_text().splitlines())
    assert begun["spec_hash"] == ended["spec_hash"] == spec_hash
    assert (ended["accelerator_seconds"], ended["pod_seconds"]) == held
    assert "accelerator_seconds" not in begun
