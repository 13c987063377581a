"""Every tutorial is run as it is, smaller, and shows what its page says."""

from __future__ import annotations

import importlib
import os
import re
import runpy
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from kube import KubeApi
from ray import cloudpickle
from two_nodes import in_a_process

ROOT = Path(__file__).parents[2]
FOLDER = ROOT / "examples" / "tutorials"
PAGES = ROOT / "docs" / "tutorials"
SCRIPTS = sorted(FOLDER.glob("[0-9]*.py"))
SMALL: dict[str, dict[str, Any]] = {
    "02_sending": {"count": 40},
    "03_tasks": {"size": 64, "rounds": 4},
    "04_all_reduce": {"sizes": (1000,)},
    "05_zero_copy": {"megabytes": 20},
    "06_ring": {"patience": 1.0},
    "07_queues": {"count": 200},
    "08_buffer": {"steps": 10},
    "09_capacity": {"steps": 8},
    "10_tools": {"steps": 5},
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
def rows(tutorials: None, local_ray: None) -> Callable[[str], Rows]:
    def run(name: str) -> Rows:
        found: Rows = runpy.run_path(str(FOLDER / f"{name}.py"), run_name=name)["main"](**SMALL.get(name, {}))
        return found

    return run


def column(found: Rows, name: str) -> list[str]:
    return [str(row[name]) for row in found]


def test_references_come_back_before_their_values(rows: Callable[[str], Rows]) -> None:
    assert column(rows("01_references"), "back") == ["ObjectRef", "sums and maxima", "10"]


def test_each_way_of_sending_keeps_the_order_that_it_guarantees(rows: Callable[[str], Rows]) -> None:
    first, _, third, fourth = column(rows("02_sending"), "in order")  # the second promises none
    assert {first, third, fourth} == {"yes"}


def test_two_tasks_wait_for_each_other_or_not(rows: Callable[[str], Rows]) -> None:
    assert column(rows("03_tasks"), "waited") == ["for each at once", "for both at the end"]


def test_both_ways_give_the_mean(rows: Callable[[str], Rows]) -> None:
    assert column(rows("04_all_reduce"), "numbers") == ["1,000"]  # the means are compared there


def test_an_array_is_shared_and_a_tensor_is_copied(rows: Callable[[str], Rows]) -> None:
    array, tensor = rows("05_zero_copy")
    assert int(array["a reader's own memory, MB"]) < 5 and "no" in array["readers may write"]
    assert int(tensor["a reader's own memory, MB"]) > 15 and "yes" in tensor["readers may write"]


def test_the_ring_ends_and_the_draft_waits_for_itself(rows: Callable[[str], Rows]) -> None:
    ours, draft = rows("06_ring")
    assert (ours["result"], ours["end"]) == ("[16, 32, 48, 64]", "four threads ended")
    assert draft["result"] == "none" and "waits for itself" in draft["end"]


def test_a_dead_consumer_takes_what_it_had_fetched_nowhere(rows: Callable[[str], Rows]) -> None:
    for row in rows("07_queues"):
        assert row["left of 100 when a consumer died with 10"] == 90, row["queue"]


def test_the_buffer_demo_trains_on_whole_batches(rows: Callable[[str], Rows]) -> None:
    [row] = rows("08_buffer")
    assert (row["steps"], row["samples"]) == (10, 640)


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


def test_a_queue_is_never_fuller_than_it_may_be(rows: Callable[[str], Rows]) -> None:
    found = rows("09_capacity")
    assert column(found, "places") == ["64", "2,048", "8,192"]
    assert all(0 <= int(share) <= 100 for share in column(found, "full, %"))


def test_tools_swing_the_queue(rows: Callable[[str], Rows]) -> None:
    assert [len(bars) <= 5 for bars in column(rows("10_tools"), "fill after each step")] == [True, True]


def test_two_learners_share_every_sample_once(rows: Callable[[str], Rows]) -> None:
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


def test_a_job_and_a_service_answer_the_same_questions(rows: Callable[[str], Rows]) -> None:
    found = {row["question"]: row for row in rows("14_rayservice")}
    assert found["what runs"]["RayJob"] == "rltrain"
    assert found["what runs"]["RayService"].startswith("rl_serve.application:")
    assert "learner x1" in found["pods"]["RayJob"] and "replica x1" in found["pods"]["RayService"]


def test_a_loop_does_the_same_wherever_its_workers_are(rows: Callable[[str], Rows]) -> None:
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
