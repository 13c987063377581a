"""Which replica answers: Ray Serve's own proxy asks ours, on two nodes of which the proxy is on the first. And that it may
take its time to start."""

from __future__ import annotations

import asyncio
import math
import os
import sys
import tempfile
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
import ray
import requests
import slow_proxy
from ports import free_ports
from ray import serve
from ray.serve.config import HTTPOptions, RequestRouterConfig
from serve_cluster import wait_for
from service_worlds import FOLLOWED, checkpoint, make_service_plan
from starlette.requests import Request
from two_nodes import in_a_process, two_nodes

from rl_operator.render.service import ray_service
from rl_serve.routing import PrefixRouter


class Copy:
    """Says who it is, as soon as it is let to: `wait` seconds later, or when so many as `together` says have asked who
    write so into the same file."""

    async def __call__(self, request: Request) -> dict[str, Any]:
        body = await request.json()
        await asyncio.sleep(body.get("wait", 0))
        if "together" in body:
            there = Path(body["file"])
            with there.open("a") as file:
                file.write(".")
            async with asyncio.timeout(100):
                while there.stat().st_size < body["together"]:
                    await asyncio.sleep(0.05)
        return {"pid": os.getpid(), "asked": body["prompt"]}


def environment(engine: str) -> dict[str, str]:
    """What the operator gives the pods of a service, as far as routing reads it."""
    plan = make_service_plan({"engine": engine, "image": "a/b:1", "promotion": {"answers": "stamp"}})
    cluster = ray_service(plan, FOLLOWED, checkpoint(20))["spec"]["rayClusterConfig"]
    (pod,) = cluster["headGroupSpec"]["template"]["spec"]["containers"]
    return {one["name"]: one["value"] for one in pod["env"] if one["name"].startswith("RAY_SERVE_")}


def ask(url: str, prompt: str, wait: float = 0.0, **fields: Any) -> int:
    answer = requests.post(url, json={"prompt": prompt, "wait": wait, **fields}, timeout=120)
    assert answer.status_code == 200, answer.text
    assert answer.json()["asked"] == prompt
    return int(answer.json()["pid"])


def route(engine: str) -> None:
    """Ask two replicas, one beside the proxy."""
    router = {"request_router_config": RequestRouterConfig(request_router_class=PrefixRouter)}
    options: dict[str, Any] = router if engine == "vllm" else {}
    os.environ |= environment(engine)
    # A replica that does not say at once how much it has to do is passed over: on a busy machine that is any of them.
    os.environ["RAY_SERVE_QUEUE_LENGTH_RESPONSE_DEADLINE_S"] = "10"
    ray.cloudpickle.register_pickle_by_value(sys.modules[__name__])
    (port,) = free_ports(1)
    with two_nodes():
        serve.start(proxy_location="HeadOnly", http_options=HTTPOptions(host="127.0.0.1", port=port))
        deployment = serve.deployment(Copy).options(
            num_replicas=2, max_ongoing_requests=1000, ray_actor_options={"num_cpus": 2}, **options
        )
        serve.run(deployment.bind())
        (by_router if options else by_load)(f"http://127.0.0.1:{port}/")
        serve.shutdown()


def start_slowly() -> None:
    """One replica, behind a proxy that comes late."""
    os.environ |= environment("torch") | {
        "PYTHONPATH": str(Path(slow_proxy.__file__).parent),
        "RAY_SERVE_HTTP_PROXY_CALLBACK_IMPORT_PATH": "slow_proxy:middlewares",
    }
    ray.cloudpickle.register_pickle_by_value(sys.modules[__name__])
    (port,) = free_ports(1)
    with two_nodes():
        begun = time.monotonic()
        serve.start(proxy_location="HeadOnly", http_options=HTTPOptions(host="127.0.0.1", port=port))
        assert time.monotonic() - begun >= slow_proxy.SECONDS
        serve.run(serve.deployment(Copy).bind())
        ask(f"http://127.0.0.1:{port}/", "2+2=")
        serve.shutdown()


def by_load(url: str) -> None:
    # All last until all of them are there: a replica that stands still for a while has as many as the other.
    with tempfile.NamedTemporaryFile() as file, ThreadPoolExecutor(60) as pool:
        all_of_them = {"together": 60, "file": file.name}
        counts = Counter(pool.map(lambda number: ask(url, str(number), **all_of_them), range(60)))
    assert len(counts) == 2
    assert min(counts.values()) > 15


def by_router(url: str) -> None:
    places = {f"{number} is the first of my questions: ": set[int]() for number in range(30)}
    for turn in range(3):
        for begins, pids in places.items():
            pids.add(ask(url, begins * 20 + f"turn {turn}"))
    assert {len(pids) for pids in places.values()} == {1}
    counts = Counter(pid for pids in places.values() for pid in pids)
    assert len(counts) == 2
    assert min(counts.values()) > 4
    # Many at once that begin alike are more than the share of one: they last until all of them are there.
    alike = next(iter(places)) * 20
    with tempfile.NamedTemporaryFile() as file, ThreadPoolExecutor(40) as pool:
        all_of_them = {"together": 40, "file": file.name}
        busy = Counter(pool.map(lambda number: ask(url, alike + str(number), **all_of_them), range(40)))
    # One has its share and no more: it gets none while it has 1.25 times the mean and 4, of 39 at last.
    assert max(busy.values()) <= math.ceil(1.25 * 40 / 2) + 4, busy
    # A name that requests share brings others to one place.
    one = {ask(url, str(number) * 300, prompt_cache_key="team") for number in range(6)}
    assert len(one) == 1
    # What a dead replica would have had goes to others.
    os.kill(next(iter(one)), 9)
    begun = time.monotonic()
    wait_for(lambda: _answers(url, "team"), lambda: "no replica answers")
    assert time.monotonic() - begun < 200
    assert {ask(url, begins) for begins in places} != one


def _answers(url: str, key: str) -> bool:
    body = {"prompt": "again", "prompt_cache_key": key}
    return requests.post(url, json=body, timeout=240).status_code == 200


@pytest.mark.parametrize("engine", ["torch", "vllm"])
def test_the_proxy_chooses(engine: str) -> None:
    in_a_process(route, engine, timeout=1000)


def test_a_proxy_has_time_to_start() -> None:
    in_a_process(start_slowly, timeout=1000)
