"""Every tutorial is run as it is, smaller, and shows what its page says."""

from __future__ import annotations

import importlib
import os
import re
import runpy
import signal
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import ray
import yaml
from kube import KubeApi
from ray import cloudpickle
from ray.cluster_utils import Cluster
from two_nodes import in_a_process

ROOT = Path(__file__).parents[2]
FOLDER = ROOT / "examples" / "tutorials"
PAGES = ROOT / "docs" / "tutorials"
SCRIPTS = sorted(FOLDER.glob("[0-9]*.py"))
SMALL: dict[str, dict[str, Any]] = {
    "02_sending": {"count": 40},
    "03_tasks": {"size": 64, "rounds": 4, "longest": 0.6},
    "04_all_reduce": {"sizes": (1000,)},
    "05_zero_copy": {"megabytes": 20},
    "06_ring": {"patience": 3.0},
    "07_queues": {"count": 200},
    "08_buffer": {"steps": 10},
    "10_tools": {"steps": 20, "slower": 3.0},
    "11_two_learners": {"steps": 4},
    "15_loop": {"groups": 8, "steps": 2, "megabytes": 2},
}
"""Arguments of `main`, where its own take long."""

_WITH_NUMBERS = ("left of 100 when a consumer died with 10",)
Rows = list[dict[str, Any]]


@pytest.fixture(scope="module")
def tutorials() -> Iterator[None]:
    """Their folder can be imported from, as it can when one of them is run; by actors as well."""
    sys.path.insert(0, str(FOLDER))
    modules = [importlib.import_module(name) for name in ("show", "flow")]
    for module in modules:
        cloudpickle.register_pickle_by_value(module)
    yield
    for module in modules:
        cloudpickle.unregister_pickle_by_value(module)
        del sys.modules[module.__name__]
    sys.path.remove(str(FOLDER))


@pytest.fixture
def rows(tutorials: None, local_ray: None) -> Callable[..., Rows]:
    def run(name: str, **arguments: Any) -> Rows:
        main = runpy.run_path(str(FOLDER / f"{name}.py"), run_name=name)["main"]
        found: Rows = main(**(arguments or SMALL.get(name, {})))
        return found

    return run


@pytest.fixture
def flow(tutorials: None, local_ray: None) -> Any:
    return sys.modules["flow"]


def column(found: Rows, name: str) -> list[str]:
    return [str(row[name]) for row in found]


def test_references_come_back_before_their_values(rows: Callable[..., Rows]) -> None:
    assert column(rows("01_references"), "back") == ["ObjectRef", "sums and maxima", "10"]


def test_each_way_of_sending_keeps_the_order_that_it_guarantees(rows: Callable[..., Rows]) -> None:
    first, _, third, fourth = column(rows("02_sending"), "in order")  # the second promises none
    assert {first, third, fourth} == {"yes"}


def test_two_tasks_wait_for_each_other_or_not(rows: Callable[..., Rows]) -> None:
    """They pause 1.4 and 1.2 s: waited for in turn they take both, else as long as the longer one."""
    in_turn, together = rows("03_tasks")
    assert (in_turn["waited"], together["waited"]) == ("for each at once", "for both at the end")
    assert float(in_turn["of the longer one's pauses"]) >= 1.87
    assert 1.0 <= float(together["of the longer one's pauses"]) < 1.6
    assert float(together["seconds"]) < float(in_turn["seconds"]) - 0.5


def test_both_ways_give_the_mean(rows: Callable[..., Rows]) -> None:
    assert column(rows("04_all_reduce"), "numbers") == ["1,000"]  # the means are compared there


def test_an_array_is_shared_and_a_tensor_is_copied(rows: Callable[..., Rows]) -> None:
    array, tensor = rows("05_zero_copy")
    assert int(array["a reader's own memory, MB"]) < 5 and "no" in array["readers may write"]
    assert int(tensor["a reader's own memory, MB"]) > 15 and "yes" in tensor["readers may write"]


def test_the_ring_ends_and_the_drafts_stop_at_the_second_actor(rows: Callable[..., Rows]) -> None:
    forgets, waits, mended, ours = rows("06_ring")
    assert [*forgets.values()][1:] == ["[4, 8, 12, 16]", "2 of 4", "ended"]  # doubled twice, not four times
    assert [*waits.values()][1:] == ["none", "2 of 4", "given up after 3 s"]
    assert [*mended.values()][1:] == ["none", "4 of 4", "given up after 3 s"]
    assert [*ours.values()][1:] == ["[16, 32, 48, 64]", "4 of 4", "four threads ended"]


def test_a_dead_consumer_takes_what_it_had_fetched_nowhere(rows: Callable[..., Rows]) -> None:
    for row in rows("07_queues"):
        assert row["left of 100 when a consumer died with 10"] == 90, row["queue"]


def test_the_buffer_demo_trains_on_whole_batches_and_says_who_sat_where(
    rows: Callable[..., Rows], capsys: pytest.CaptureFixture[str]
) -> None:
    [row] = rows("08_buffer")
    assert (row["steps"], row["samples"]) == (10, 640)
    seats = capsys.readouterr().out.partition("Who sat where\n")[2].splitlines()[2:]
    here = socket.gethostname()
    assert [re.split(r" {2,}", line) for line in seats] == [
        [actor, here] for actor in ("channel", "sampler 0", "sampler 1", "learner 0")
    ]


def joined() -> None:
    """On a head that has no CPUs for work, and a node that has some."""
    sys.path.insert(0, str(FOLDER))
    show, flow = (importlib.import_module(name) for name in ("show", "flow"))
    cloudpickle.register_pickle_by_value(flow)
    flow._host = lambda _: ray.get_runtime_context().get_node_id()  # both have this machine's name
    cluster = Cluster()
    try:
        cluster.add_node(num_cpus=0, include_dashboard=False, object_store_memory=80 * 2**20)
        worker = cluster.add_node(num_cpus=4, object_store_memory=80 * 2**20)
        os.environ["RAY_ADDRESS"] = cluster.address
        with show.ray_here():
            assert len(ray.nodes()) == 2
            [seen], _, hosts = flow.run(2048, flow.Times(), steps=2)
        assert len(seen.items) == 128
        roles = ("channel", "sampler 0", "sampler 1", "learner 0")
        assert hosts == dict.fromkeys(roles, worker.node_id)
    finally:
        cluster.shutdown()


def test_the_buffer_demo_works_on_the_cluster_that_it_is_told() -> None:
    in_a_process(joined)


def test_ctrl_c_ends_the_buffer_demo() -> None:
    """With a Ray of its own, as on a terminal."""
    environment = {
        name: value for name, value in os.environ.items() if not name.startswith(("RAY_", "RLTRAIN_"))
    }
    command = [sys.executable, str(FOLDER / "08_buffer.py")]
    pipes: dict[str, Any] = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT, "text": True}
    with subprocess.Popen(command, env=environment, start_new_session=True, **pipes) as process:
        assert process.stdout is not None
        try:
            assert any("step 10:" in line for line in process.stdout), "it ended by itself"
            process.send_signal(signal.SIGINT)
            assert process.communicate(timeout=240)[0].endswith("stopped\n")
            assert process.returncode == 1
        finally:
            process.kill()


def test_a_queue_is_never_fuller_than_it_may_be_and_a_larger_one_makes_samples_older(
    rows: Callable[..., Rows], flow: Any
) -> None:
    """The learner pauses 0.3 s after every fourth step, in which samplers could make a thousand answers."""
    times = flow.Times(pause=0.3, every=4)
    small, large = rows("09_capacity", steps=40, capacities=(64, 1024), times=times)
    assert (small["places"], large["places"]) == ("64", "1,024")
    for row in (small, large):
        assert 50 <= int(row["full, %"]) <= 100
        assert float(row["longest wait for room, s"]) > 0.2  # a sampler waited out a pause
    assert float(large["age of a sample, s"]) > 5 * max(0.1, float(small["age of a sample, s"]))
    assert float(large["samples/s"].replace(",", "")) < 1.5 * float(small["samples/s"].replace(",", ""))
    [seen], _, _ = flow.run(64, times, steps=12)
    assert max(seen.fill) <= 64


def test_tools_swing_the_queue(rows: Callable[..., Rows]) -> None:
    """By the seeds of the samplers the swing with tools is three times that without; a busy machine adds to both."""
    without, with_tools = (int(swing) for swing in column(rows("10_tools"), "swing of a step"))
    assert with_tools > 1.5 * without


def test_two_learners_share_every_sample_once(rows: Callable[..., Rows]) -> None:
    one, two = rows("11_two_learners")
    assert (one["samples of each"], two["samples of each"]) == ("256", "128 + 128")
    assert (one["twice"], two["twice"]) == (0, 0)


def placement() -> None:
    sys.path.insert(0, str(FOLDER))
    script = runpy.run_path(str(FOLDER / "12_placement.py"), run_name="12_placement")
    main, (*fit, fits_nowhere) = script["main"], script["STRATEGIES"]

    def found(*strategies: str, patience: float) -> Rows:
        main.__globals__["STRATEGIES"] = strategies
        rows: Rows = main(patience)
        return rows

    with script["two_nodes"]():
        packed, spread, strictly_packed = found(*fit, patience=120.0)
        [apart] = found(fits_nowhere, patience=3.0)  # it waits in vain
    for row in (packed, strictly_packed):
        assert sorted([row["node 0"], row["node 1"]]) == ["", "buffer, learner, sampler 0, sampler 1"]
    assert min(len(spread[node].split(", ")) for node in ("node 0", "node 1")) == 2
    assert apart["node 0"].startswith("waits")


def test_strategies_seat_actors_together_or_apart() -> None:
    in_a_process(placement)


def test_a_job_and_a_service_answer_the_same_questions(rows: Callable[..., Rows]) -> None:
    found = {row["question"]: row for row in rows("14_rayservice")}
    assert found["what runs"]["RayJob"] == "rltrain"
    assert found["what runs"]["RayService"].startswith("rl_serve.application:")
    assert "learner x1" in found["pods"]["RayJob"] and "replica x1" in found["pods"]["RayService"]


def test_a_loop_does_the_same_wherever_its_workers_are(rows: Callable[..., Rows]) -> None:
    found = rows("15_loop")
    assert column(found, "placement") == ["disaggregated", "collocated", "hybrid"]
    assert len(set(column(found, "weights"))) == 1
    assert set(column(found, "two at once, ms")) == {"0"}
    # In each step who shares a device moves its 2 MB in and out: nobody, all four, one sampler and one learner.
    assert column(found, "moved, MB") == ["0", "16", "8"]


def test_kubernetes_takes_the_least_rayjob(kube: KubeApi) -> None:
    file = FOLDER / "13_rayjob.yaml"
    done = kube.kubectl("create", "--dry-run=server", "--validate=strict", "-f", str(file))
    assert done.stdout.startswith("rayjob.ray.io/buffer-demo created"), done.stdout
    assert yaml.safe_load(file.read_text())["spec"]["entrypoint"].startswith(
        f"python /tutorials/{SCRIPTS[7].name}"
    )


def test_every_tutorial_has_its_place_on_the_page() -> None:
    page = (PAGES / "README.md").read_text()
    names = [path.name for path in sorted(FOLDER.glob("[0-9]*"))]
    assert re.findall(r"examples/tutorials/(\d\d_\w+\.(?:py|yaml))\)", page) == names


@pytest.mark.parametrize("script", SCRIPTS, ids=lambda path: path.stem)
def test_the_page_has_the_table_of_the_script(script: Path) -> None:
    """By the heads of its columns, which are words of the script."""
    page, text = (PAGES / "README.md").read_text(), script.read_text()
    section = re.split(r"^## ", page, flags=re.M)[int(script.stem[:2])]
    head = section.split("```\n")[1].splitlines()[0]
    columns = [name.strip() for name in re.split(r" {2,}", head)]
    assert len(columns) > 1
    missing = [
        name for name in columns if name not in text and name not in ("node 0", "node 1", *_WITH_NUMBERS)
    ]
    assert missing == []
