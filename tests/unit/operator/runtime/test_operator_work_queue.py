from __future__ import annotations

import asyncio

from async_work import run_async

from rl_operator.runtime.work_queue import WorkQueue


class TestQueue:
    def test_a_key_is_in_it_once(self) -> None:
        async def work() -> None:
            depths: list[int] = []
            queue: WorkQueue[str] = WorkQueue(depths.append)
            for key in ("a", "b", "a"):
                queue.add(key)
            assert queue.depth == 2
            assert [await queue.get(), await queue.get()] == ["a", "b"]
            assert depths == [1, 2, 1, 0]
            assert queue.oldest == 0.0

        run_async(work)

    def test_nobody_else_gets_a_key_that_is_worked_on(self) -> None:
        async def work() -> None:
            queue: WorkQueue[str] = WorkQueue()
            queue.add("a")
            assert await queue.get() == "a"
            queue.add("a")
            queue.add("a")
            assert queue.depth == 0
            queue.done("a")
            assert queue.depth == 1
            assert await queue.get() == "a"
            queue.done("a")
            assert queue.depth == 0

        run_async(work)

    def test_what_is_urgent_comes_first_and_starves_nobody(self) -> None:
        async def work() -> None:
            queue: WorkQueue[str] = WorkQueue()
            for number in range(3):
                queue.add(f"old-{number}")
            for number in range(8):
                queue.add(f"new-{number}", urgent=True)
            queue.add("old-2", urgent=True)
            queue.add("new-0")
            assert queue.pressed
            taken = [await queue.get() for _ in range(queue.depth)]
            assert taken[:8] == [*(f"new-{number}" for number in range(7)), "old-0"]
            assert taken[8:] == ["new-7", "old-2", "old-1"]
            assert not queue.pressed
            queue.add("old-1")
            queue.add("new-0", urgent=True)
            queue.done("old-1")
            queue.done("new-0")
            queue.done("new-1")
            assert queue.depth == 2
            assert queue.pressed

        run_async(work)

    def test_later_is_later_and_the_earlier_time_counts(self) -> None:
        async def work() -> None:
            queue: WorkQueue[str] = WorkQueue()
            queue.add_after("a", 600)
            queue.add_after("a", 0.01)
            queue.add_after("a", 300)
            queue.add_after("b", 600)
            assert queue.depth == 0
            assert await queue.get() == "a"
            queue.add("b")
            assert await queue.get() == "b"
            queue.add_after("c", 0)
            assert queue.depth == 1
            queue.add_after("d", 0.01)
            queue.forget("d")
            await queue.get()
            await asyncio.sleep(0.05)
            assert queue.depth == 0

        run_async(work)
