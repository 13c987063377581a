"""Places for requests: in turn by namespace, and given back whatever happens."""

from __future__ import annotations

import asyncio

from async_work import run_async

from rl_operator.drivers.places import Places


async def settled() -> None:
    for _ in range(5):
        await asyncio.sleep(0)


def test_one_namespace_takes_not_all_places() -> None:
    async def work() -> None:
        places, let, inside = Places(8), asyncio.Event(), list[str]()

        async def hold(namespace: str) -> None:
            async with places.of(namespace):
                inside.append(namespace)
                await let.wait()

        tasks = [asyncio.create_task(hold("many")) for _ in range(50)]
        await settled()
        assert inside == ["many"] * 6
        tasks += [asyncio.create_task(hold("one")) for _ in range(2)]
        await settled()
        assert inside[6:] == ["one", "one"]
        let.set()
        await asyncio.gather(*tasks)
        assert len(inside) == 52

    run_async(work)


def test_who_is_cancelled_leaves_the_line_or_gives_the_place_back() -> None:
    async def work() -> None:
        places, let, inside = Places(1), asyncio.Event(), list[int]()

        async def hold(number: int) -> None:
            async with places.of("team"):
                inside.append(number)
                await let.wait()

        first, second, third = (asyncio.create_task(hold(number)) for number in range(3))
        await settled()
        second.cancel()
        await settled()
        first.cancel()
        await asyncio.sleep(0)  # its place is given to the third, which has not heard of it
        third.cancel()
        fourth = asyncio.create_task(hold(3))
        await settled()
        assert inside == [0, 3]
        let.set()
        await asyncio.gather(first, second, third, fourth, return_exceptions=True)
        async with asyncio.timeout(5.0), places.of("team"):
            pass

    run_async(work)
