"""Both sides of a shared device, with an actor that answers when the test says so."""

from __future__ import annotations

import asyncio
from concurrent.futures import Future
from contextlib import nullcontext
from types import SimpleNamespace
from typing import Any
from unittest.mock import MagicMock

import pytest

from rl_api.errors import ActorDied, CheckpointError, DeadlineExceeded, RLTrainError
from rl_trainer.buffer.actor import BufferActor
from rl_trainer.buffer.groups import BufferConfig
from rl_trainer.flow import turns
from rl_trainer.flow.leases import LEARNERS
from rl_trainer.flow.turns import SharedDevice, Turn, device_for_loading
from rl_trainer.observe.timeline import SpanRecorder


class Leases:
    """An actor whose calls are kept, each with its answer to come."""

    def __init__(self) -> None:
        self.calls: list[tuple[str, tuple[Any, ...], Future[Any]]] = []

    def __getattr__(self, name: str) -> Any:
        def remote(*arguments: Any) -> Any:
            future: Future[Any] = Future()
            self.calls.append((name, arguments, future))
            return SimpleNamespace(future=lambda: future)

        return SimpleNamespace(remote=remote)

    @property
    def names(self) -> list[str]:
        return [name for name, _, _ in self.calls]

    def answer(self, name: str, result: Any) -> None:
        """Of the last call of this name."""
        next(future for called, _, future in reversed(self.calls) if called == name).set_result(result)


@pytest.fixture
def leases() -> Leases:
    return Leases()


def device(leases: Leases, moved: list[str], drain: bool = False) -> SharedDevice:
    def leave() -> None:
        moved.append("leave")

    return SharedDevice(
        leases,
        0,
        SpanRecorder("sampler 0"),
        drain=drain,
        wake=lambda: None,
        arrive=lambda: moved.append("arrive"),
        leave=leave,
    )


def held(leases: Leases, moved: list[str], drain: bool = False) -> SharedDevice:
    """One that has its device, and asks whether it is wanted."""
    shared = device(leases, moved, drain)
    assert not shared.take_or_leave(True, False, bool)
    leases.answer("claim", 1)
    assert shared.take_or_leave(True, False, bool)
    assert leases.names == ["claim", "wanted"]
    return shared


def test_a_sampler_whose_help_is_not_needed_leaves_where_all_that_it_has_can_move(leases: Leases):
    moved: list[str] = []
    shared = held(leases, moved)
    leases.answer("wanted", "done")
    assert not shared.take_or_leave(False, True, lambda: True)
    assert moved == ["arrive", "leave"]


def test_a_sampler_with_what_must_stay_keeps_its_device_though_others_could_do_without_it(leases: Leases):
    """It would ask for it again at once: a claim, and tensors in and out, for each token."""
    moved: list[str] = []
    shared = held(leases, moved)
    assert leases.calls[-1][1][-1] == 0, "it asks whether its help is needed"
    leases.answer("wanted", "done")
    for _ in range(200):
        assert shared.take_or_leave(True, True, lambda: False)
        assert not shared.is_waited_for
    assert leases.names == ["claim", "wanted", "wanted"]
    assert leases.calls[-1][1][-1] is None, "it has been told"
    leases.answer("wanted", "wanted")
    assert not shared.take_or_leave(True, True, lambda: False), "learners' claims count whatever it has"
    assert moved == ["arrive", "leave"]


def test_a_sampler_that_drains_leaves_when_what_it_has_begun_can_only_wait(leases: Leases):
    """Tools and scores take their time; when they answer it asks for the device again."""
    moved: list[str] = []
    shared = held(leases, moved, drain=True)
    leases.answer("wanted", "wanted")
    assert shared.take_or_leave(True, True, bool), "it decodes"
    assert shared.is_waited_for, "nothing new is begun"
    assert not shared.take_or_leave(True, False, bool), "tickets that it holds are begun later"
    assert moved == ["arrive", "leave"]
    leases.answer("give_back", None)
    assert not shared.take_or_leave(True, True, bool)
    assert leases.names[-2:] == ["give_back", "claim"]


def test_the_end_of_a_sampler_tells_its_reason_and_takes_no_device(leases: Leases):
    moved: list[str] = []
    shared = device(leases, moved)
    shared.take_or_leave(True, False, bool)
    leases.answer("claim", 7)
    shared.close()
    assert (moved, leases.names) == ([], ["claim", "give_back"])
    assert leases.calls[-1][1] == ("sampler 0", 7)
    shared = held(failing := Leases(), moved)
    failing.calls[-1][2].set_exception(ActorDied("the buffer died"))
    shared.close()
    assert failing.names[-1] == "give_back"


def learners(leases: Leases, wait: Any, moved: list[str], monkeypatch: pytest.MonkeyPatch) -> Turn:
    monkeypatch.setattr(turns, "answer", lambda *_: None)
    turn = Turn(leases, ["learner 0"], wait, SpanRecorder("driver"))
    turn.move(lambda: moved.append("arrive"), lambda: moved.append("leave"))
    return turn


def test_learners_that_wait_no_more_give_their_claim_up(leases: Leases, monkeypatch: pytest.MonkeyPatch):
    def wait(*_: Any) -> None:
        raise ActorDied("samplers died 4 times")

    moved: list[str] = []
    turn = learners(leases, wait, moved, monkeypatch)
    with pytest.raises(ActorDied), turn.taken("training"):
        pytest.fail("nothing is granted")
    assert (leases.names, leases.calls[-1][1], moved) == (["claim", "give_up"], (LEARNERS, 1), [])


def test_learners_look_at_something_else_while_they_wait(leases: Leases, monkeypatch: pytest.MonkeyPatch):
    def look() -> bool:
        return False

    waited: list[Any] = []
    turn = learners(leases, lambda *given: waited.append(given[-1]), [], monkeypatch)
    with turn.taken("training", meanwhile=look):
        pass
    assert waited == [look]


def test_learners_wait_for_a_buffer_that_stands_still_no_longer_than_for_any_of_its_answers(
    leases: Leases, monkeypatch: pytest.MonkeyPatch
):
    turn = Turn(leases, ["learner 0"], lambda *_: 1, SpanRecorder("driver"), patience=5.0)
    waited: list[tuple[Any, ...]] = []
    monkeypatch.setattr(turns, "answer", lambda *given: waited.append(given[1:]))
    with turn.taken("training"):
        pass
    assert waited == [("buffer", "giving devices back", 5.0)]


def test_a_process_that_loads_has_the_device_though_its_name_was_given_it_after_death():
    """What a sampler asked for just before its death may arrive after the driver has told of that."""

    async def story() -> None:
        actor = BufferActor(BufferConfig(1, max_staleness=0, samplers=1))
        await actor.release(0)
        late = await actor.claim("sampler 0", ["learner 0"], 60.0)
        waits = asyncio.create_task(actor.claim(LEARNERS, ["learner 0"], 60.0, 1))
        await asyncio.sleep(0)
        again = asyncio.create_task(actor.claim("sampler 0", ["learner 0"], 60.0, anew=True))
        epoch = await waits
        assert epoch is not None
        assert late is not None
        await actor.give_back("sampler 0", late)  # changes nothing
        await actor.give_back(LEARNERS, epoch)
        assert await again == epoch + 1

    asyncio.run(story())


def test_learners_that_fail_and_go_on_leave_devices_before_they_give_them_back(
    leases: Leases, monkeypatch: pytest.MonkeyPatch
):
    moved: list[str] = []
    turn = learners(leases, lambda *_: 1, moved, monkeypatch)
    with pytest.raises(CheckpointError), turn.taken("writing"):
        raise CheckpointError("the disk is full")
    assert (leases.names, moved) == (["claim", "give_back"], ["arrive", "leave"])


def test_devices_of_learners_that_do_not_answer_or_cannot_leave_are_not_given_back(
    leases: Leases, monkeypatch: pytest.MonkeyPatch
):
    moved: list[str] = []
    turn = learners(leases, lambda *_: 1, moved, monkeypatch)
    with pytest.raises(ActorDied), turn.taken("training"):
        raise ActorDied("learner 0 died")
    assert (leases.names, moved) == (["claim"], ["arrive"])

    def stay() -> None:
        raise RLTrainError("no room")

    turn = learners(leases, lambda *_: 2, moved, monkeypatch)
    turn.move(lambda: None, stay)
    with pytest.raises(CheckpointError), turn.taken("writing"):
        raise CheckpointError("the disk is full")
    assert leases.names == ["claim", "claim"]


@pytest.mark.parametrize("error", [DeadlineExceeded("learner 0"), KeyboardInterrupt()])
def test_learners_that_do_not_answer_keep_devices_where_their_tensors_stay_as_well(
    error: BaseException, leases: Leases, monkeypatch: pytest.MonkeyPatch
):
    """Ranks may compute there still."""
    turn = staying(leases, monkeypatch)
    with pytest.raises(type(error)), turn.taken("training"):
        raise error
    assert leases.names == ["claim"]


@pytest.mark.parametrize("error", [CheckpointError("the disk is full"), ActorDied("learner 0 died")])
def test_learners_that_fail_or_have_died_give_devices_back_where_their_tensors_stay(
    error: RLTrainError, leases: Leases, monkeypatch: pytest.MonkeyPatch
):
    turn = staying(leases, monkeypatch)
    with pytest.raises(type(error)), turn.taken("writing"):
        raise error
    assert leases.names == ["claim", "give_back"]


def staying(leases: Leases, monkeypatch: pytest.MonkeyPatch) -> Turn:
    """Of learners whose tensors stay."""
    monkeypatch.setattr(turns, "answer", lambda *_: None)
    return Turn(leases, ["learner 0"], lambda *_: 1, SpanRecorder("driver"))


@pytest.mark.parametrize("epoch", [7, None])
def test_a_sampler_that_gets_no_device_loads_nothing(epoch: int | None, monkeypatch: pytest.MonkeyPatch):
    """The run was over, or the driver gave it up, while it waited."""
    said = iter([epoch, None])
    monkeypatch.setattr(turns, "answer", lambda *_: next(said))
    monkeypatch.setattr(turns, "Process", MagicMock())
    called: list[str] = []

    class Actor:
        def __getattr__(self, name: str) -> Any:
            return SimpleNamespace(remote=lambda *_, **__: called.append(name))

    refused = pytest.raises(ActorDied, match=r"^sampler 0: loads no model, as the run is over, or another")
    with nullcontext() if epoch else refused, device_for_loading(Actor(), 0):
        called.append("load")
    # Who it is it says first: whoever gives it up waits until that process is gone.
    assert called == ["tell", "claim", *(["load", "give_back"] if epoch else [])]


def test_learners_that_were_stopped_as_they_arrived_arrive_before_they_go_on(
    leases: Leases, monkeypatch: pytest.MonkeyPatch
):
    """The run writes a checkpoint after a signal."""
    moved: list[str] = []
    turn = learners(leases, lambda *_: 1, moved, monkeypatch)

    def stop() -> None:
        raise KeyboardInterrupt

    turn.move(stop, lambda: moved.append("leave"))
    with pytest.raises(KeyboardInterrupt), turn.taken("training"):
        pytest.fail("they have not arrived")
    assert leases.names == ["claim"]
    turn.move(lambda: moved.append("arrive"), lambda: moved.append("leave"))
    with turn.taken("writing"):
        moved.append("write")
    assert (leases.names, moved) == (["claim", "give_back"], ["arrive", "write", "leave"])
