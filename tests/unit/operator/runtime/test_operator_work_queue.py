from __future__ import annotations

import asyncio

from async_work import run_async
from hypothesis import given
from hypothesis import strategies as st

from rl_operator.model.names import Key
from rl_operator.runtime.work_queue import WorkQueue


def of(namespace: str, *names: object) -> list[Key]:
    return [(namespace, str(name)) for name in names]


A, B, C, D = of("team", "a", "b", "c", "d")


class TestQueue:
    def test_a_key_is_in_it_once(self) -> None:
        async def work() -> None:
            depths: list[int] = []
            queue = WorkQueue(depths.append)
            for key in (A, B, A):
                queue.add(key)
            assert queue.depth == 2
            assert queue.oldest > 0.0
            assert [await queue.get(), await queue.get()] == [A, B]
            assert depths == [1, 2, 1, 0]
            assert queue.oldest == 0.0

        run_async(work)

    def test_nobody_else_gets_a_key_that_is_worked_on(self) -> None:
        async def work() -> None:
            queue = WorkQueue()
            queue.add(A)
            assert await queue.get() == A
            queue.add(A)
            queue.add(A)
            assert queue.depth == 0
            queue.done(A)
            assert queue.depth == 1
            assert await queue.get() == A
            queue.done(A)
            assert queue.depth == 0

        run_async(work)

    def test_what_is_urgent_comes_first_and_starves_nobody(self) -> None:
        async def work() -> None:
            queue = WorkQueue()
            old, new = (
                of("team", *(f"old-{i}" for i in range(3))),
                of("team", *(f"new-{i}" for i in range(8))),
            )
            for key in old:
                queue.add(key)
            for key in new:
                queue.add(key, urgent=True)
            queue.add(old[2], urgent=True)
            queue.add(new[0])
            assert queue.pressed
            taken = [await queue.get() for _ in range(queue.depth)]
            assert taken == [*new[:7], old[0], new[7], old[2], old[1]]
            assert not queue.pressed
            queue.add(old[1])
            queue.add(new[0], urgent=True)
            for key in (old[1], new[0], new[1]):
                queue.done(key)
            assert queue.depth == 2
            assert queue.pressed

        run_async(work)

    def test_later_is_later_and_the_earlier_time_counts(self) -> None:
        async def work() -> None:
            queue = WorkQueue()
            queue.add_after(A, 600)
            queue.add_after(A, 0.01)
            queue.add_after(A, 300)
            queue.add_after(B, 600)
            assert queue.depth == 0
            assert await queue.get() == A
            queue.add(B)
            assert await queue.get() == B
            queue.add_after(C, 0)
            assert queue.depth == 1
            queue.add_after(D, 0.01)
            queue.forget(D)
            await queue.get()
            await asyncio.sleep(0.05)
            assert queue.depth == 0

        run_async(work)


class TestNamespaces:
    def test_the_runs_of_one_team_do_not_delay_those_of_another(self) -> None:
        async def work() -> None:
            queue = WorkQueue()
            for key in of("many", *range(10_000)):
                queue.add(key, urgent=True)
            queue.add(("one", "mine"))
            queue.add(("two", "mine"))
            taken = [await queue.get() for _ in range(4)]
            assert [namespace for namespace, _ in taken] == ["many", "one", "two", "many"]

        run_async(work)

    def test_slow_work_for_one_team_leaves_workers_to_others(self) -> None:
        async def work() -> None:
            queue = WorkQueue()
            queue.turns.places = 16
            for key in of("slow", *range(100)):
                queue.add(key)
            held = [await queue.get() for _ in range(12)]
            workers = [asyncio.create_task(queue.get()) for _ in range(4)]
            await asyncio.sleep(0)
            assert not any(one.done() for one in workers)
            queue.add(A)
            done, _ = await asyncio.wait(workers, timeout=5.0, return_when=asyncio.FIRST_COMPLETED)
            assert [one.result() for one in done] == [A]
            queue.done(A)
            queue.done(held[0])
            done, waiting = await asyncio.wait(
                set(workers) - done, timeout=5.0, return_when=asyncio.FIRST_COMPLETED
            )
            assert [one.result() for one in done] == of("slow", 12)
            for one in waiting:
                one.cancel()

        run_async(work)

    @given(
        st.lists(st.tuples(st.sampled_from("abcd"), st.integers(0, 5), st.booleans()), max_size=60),
        st.integers(1, 5),
    )
    def test_everything_is_taken_and_nobody_waits_for_two_of_another(
        self, added: list[tuple[str, int, bool]], every: int
    ) -> None:
        """Keys are added between the takes; of two takes of another namespace one is that of any that waits."""

        async def work() -> None:
            queue, waiting, since = WorkQueue(), set[Key](), dict[str, list[str]]()
            for count, (namespace, number, urgent) in enumerate(
                [*added, *(("z", i, False) for i in range(99))]
            ):
                if count < len(added):
                    key = (namespace, str(number))
                    queue.add(key, urgent=urgent)
                    waiting.add(key)
                    since.setdefault(namespace, [])
                if count % every or not waiting:
                    continue
                assert queue.depth == len(waiting)
                taken = await queue.get()
                waiting.remove(taken)
                for others in since.values():
                    others.append(taken[0])
                others = since.pop(taken[0])[:-1]
                assert len(set(others)) == len(others)
                if any(one[0] == taken[0] for one in waiting):
                    since[taken[0]] = []
                queue.done(taken)

        run_async(work)
