"""Which policy a replica serves: the newest wish counts, and until then the old one answers."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

import pytest
from async_work import run_async

from rl_api.errors import CheckpointError, DeadlineExceeded, ModelError, ModelUnavailable, Unavailable
from rl_serve.arguments import PolicyRef
from rl_serve.faults import passes
from rl_serve.holder import Holder

SECONDS = 30.0


def ref(version: str) -> PolicyRef:
    return PolicyRef(source=f"/{version}", version=version)


class Server:
    def __init__(self, name: str) -> None:
        self.name, self.idle, self.closed = name, True, False

    def close(self) -> None:
        self.closed = True


class Loads:
    """Loads that end when the test says so, each with its result."""

    def __init__(self, *, in_place: bool = False) -> None:
        self.begun: list[str] = []
        self.results: dict[str, asyncio.Future[None]] = {}
        self.in_place = in_place

    async def __call__(self, policy: PolicyRef, current: Server | None) -> Server:
        self.begun.append(policy.version)
        self.results[policy.version] = asyncio.get_running_loop().create_future()
        await self.results[policy.version]
        if self.in_place and current is not None:
            current.name = policy.version
            return current
        return Server(policy.version)

    def end(self, version: str, error: Exception | None = None) -> None:
        if error is None:
            self.results[version].set_result(None)
        else:
            self.results[version].set_exception(error)


def run(work: Callable[[Loads, Holder[Server]], Awaitable[None]], *, in_place: bool = False) -> None:
    async def begun() -> None:
        loads = Loads(in_place=in_place)
        await work(loads, Holder(loads, again=0.01))

    run_async(begun, SECONDS)


async def until(condition: Callable[[], bool]) -> None:
    while not condition():
        await asyncio.sleep(0.001)


async def serve(loads: Loads, holder: Holder[Server], version: str) -> Server:
    holder.want(ref(version))
    await until(lambda: version in loads.results)
    loads.end(version)
    await holder.settled()
    assert holder.server is not None
    assert (holder.server.name, holder.loading, holder.error) == (version, None, None)
    return holder.server


def test_the_old_one_answers_until_the_new_one_is_loaded_and_is_freed_when_its_answers_are() -> None:
    async def work(loads: Loads, holder: Holder[Server]) -> None:
        old = await serve(loads, holder, "a")
        old.idle = False
        holder.want(ref("b"))
        await until(lambda: holder.loading == "b")
        assert holder.server is old
        loads.end("b")
        await holder.settled()
        assert holder.server is not None
        assert holder.server.name == "b"
        assert not old.closed
        old.idle = True
        await until(lambda: old.closed)

    run(work)


def test_a_policy_that_cannot_be_loaded_leaves_the_old_one() -> None:
    async def work(loads: Loads, holder: Holder[Server]) -> None:
        old = await serve(loads, holder, "a")
        holder.want(ref("b"))
        await until(lambda: "b" in loads.results)
        loads.end("b", CheckpointError("b is damaged"))
        await holder.settled()
        assert (holder.server, holder.error, holder.loading) == (old, "b is damaged", None)
        holder.want(ref("a"))
        await holder.settled()
        assert (holder.server, holder.error) == (old, None)
        assert loads.begun == ["a", "b"], "what is served is not loaded again"

    run(work)


@pytest.mark.parametrize(
    "error",
    [
        DeadlineExceeded("the head does not answer"),
        Unavailable("the bucket does not answer"),
        ModelUnavailable("the hub does not answer"),
        OSError("no space left on device"),
    ],
)
def test_who_does_not_answer_is_asked_again(error: Exception) -> None:
    async def work(loads: Loads, holder: Holder[Server]) -> None:
        holder.want(ref("a"))
        await until(lambda: "a" in loads.results)
        loads.end("a", error)
        await until(lambda: holder.error is not None)
        assert holder.retryable
        await until(lambda: loads.begun == ["a", "a"])
        loads.end("a")
        await holder.settled()
        assert (holder.served, holder.error) == (ref("a"), None)

    run(work)


@pytest.mark.parametrize(
    "error",
    [
        CheckpointError("model.safetensors does not match its checksum"),
        ModelError("another shape"),
        KeyError("what nobody thought of"),
        MemoryError(),  # it needs more than there is
    ],
)
def test_what_says_something_of_the_policy_is_told_apart(error: Exception) -> None:
    async def work(loads: Loads, holder: Holder[Server]) -> None:
        holder.want(ref("a"))
        await until(lambda: "a" in loads.results)
        loads.end("a", error)
        await holder.settled()
        assert holder.error is not None
        assert not holder.retryable

    run(work)


def test_what_a_place_without_space_is_the_cause_of_is_not_the_policys() -> None:
    error = ModelError("its copy cannot be written")
    error.__cause__ = OSError(28, "No space left on device")
    assert passes(error)
    assert not passes(ModelError("its copy cannot be written"))


def test_the_newest_wish_counts() -> None:
    async def work(loads: Loads, holder: Holder[Server]) -> None:
        old = await serve(loads, holder, "a")
        for version in ("b", "c"):
            holder.want(ref(version))
            await until(lambda: bool(holder.loading))
        loads.end("b")
        await until(lambda: "c" in loads.results)
        assert holder.server is old
        holder.want(ref("a"))
        loads.end("c")
        await holder.settled()
        assert (holder.server, loads.begun) == (old, ["a", "b", "c"])

    run(work)


def test_no_policy_at_once_and_changes_in_place() -> None:
    async def work(loads: Loads, holder: Holder[Server]) -> None:
        server = await serve(loads, holder, "a")
        assert await serve(loads, holder, "b") is server
        assert not server.closed
        holder.want(None)
        assert (holder.server, holder.served) == (None, None)
        await until(lambda: server.closed)
        assert await serve(loads, holder, "c") is not server
        await holder.close()

    run(work, in_place=True)
