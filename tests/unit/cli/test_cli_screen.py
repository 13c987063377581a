"""How rows look, as text of a terminal of some width."""

from __future__ import annotations

import io
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from rich.console import Console

from rl_cli.screen import Screen, all_runs, one_run
from rl_cli.view import Row

NOW = datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC)
ROW = Row(
    namespace="team-a",
    name="arithmetic",
    uid="u",
    phase="Training",
    step=12,
    max_steps=50,
    reward=0.52,
    heldout=0.4,
    tokens_per_second=5323.0,
    buffer_fill=0.25,
    staleness=0.5,
    eta=130.0,
    samplers=(3, 4),
    learners=(1, 1),
    attempt=2,
    checkpoint=10,
    checkpoint_uri="/data/10",
    target=0.9,
    created=NOW - timedelta(minutes=7),
    updated=NOW,
    ended=("attempt 1 (steps 0 to 5): HeadLost: gone",),
)


def drawn(view: Any, width: int) -> str:
    console = Console(file=io.StringIO(), width=width, highlight=False, markup=False)
    console.print(view)
    file = console.file
    assert isinstance(file, io.StringIO)
    return file.getvalue()


def test_one_run() -> None:
    text = drawn(one_run(ROW, {"u": [0.1, 0.5]}, NOW, 100), 100)
    for part in (
        "arithmetic  Training  team-a",
        "7 min",
        "12/50  ETA 2 min",
        "▁█",
        "target 0.90",
        "5,323 tokens/s",
        "25%",
        "3/4",
        "10  /data/10",
        "attempt 1 (steps 0 to 5): HeadLost: gone",
        "learners",
    ):
        assert part in text, part


def test_one_run_says_what_it_takes_of_its_machines_while_it_trains() -> None:
    row = replace(
        ROW,
        total_tokens_per_second=8921.4,
        cpus=(("sampler", 2.04), ("driver", 0.1)),
        gpus=(("sampler", 0.93), ("learner", 0.885)),
        stored=3_140_000.0,
        between_nodes=0.0,
    )
    words = " ".join(drawn(one_run(row, {}, NOW, 100), 100).split())
    for part in (
        "tokens 8,921/s with prompts",
        "cores sampler 2.0, driver 0.1",
        "GPUs sampler 93%, learner 88%",
        "stored 3.1 MB a step",
        "nodes 0 B a step between them",
    ):
        assert part in words, part
    for quiet in (ROW, replace(row, phase="Suspended")):
        text = drawn(one_run(quiet, {}, NOW, 100), 100)
        assert not [label for label in ("cores", "GPUs", "stored", "between") if label in text]


def test_a_placement_is_shown_whole_beside_what_is_wanted() -> None:
    row = replace(
        ROW,
        placement="hybrid (1 of 3 samplers share), planned by attempt 1, 4.5 s a step, 4.2 s predicted",
        wanted="collocated (3 of 3 samplers share), 3.0 s predicted, not given: spec.checkpoint is null",
    )
    text = drawn(one_run(row, {}, NOW, 80), 80)
    words = " ".join(text.split())
    assert f"placement {row.placement} wanted {row.wanted}" in words
    assert max(map(len, text.splitlines())) <= 80
    over = drawn(one_run(replace(row, phase="Succeeded"), {}, NOW, 80), 80)
    assert "placement" not in over


@pytest.mark.parametrize("width", [20, 40, 76, 200])
def test_no_line_is_wider_than_the_terminal(width: int) -> None:
    text = drawn(one_run(replace(ROW, reason="0/1 nodes are available: " * 5), {}, NOW, width), width)
    assert max(map(len, text.splitlines())) <= width
    table = drawn(all_runs([ROW], NOW, width, with_namespace=True), width)
    assert max(map(len, table.splitlines())) <= width


def test_a_reason_is_shown_as_a_whole() -> None:
    reason = (
        "no node offers nvidia.com/gpu in pool h100, and the quota of team-a is used up by two other runs"
    )
    text = drawn(one_run(replace(ROW, phase="Starting", reason=reason), {}, NOW, 60), 60)
    assert reason in " ".join(text.split())


def test_a_driver_that_is_silent_is_named() -> None:
    text = drawn(one_run(replace(ROW, updated=NOW - timedelta(minutes=5)), {}, NOW, 80), 80)
    assert "the driver's last word is 5 min old" in text
    assert "last word" not in drawn(one_run(ROW, {}, NOW, 80), 80)


def test_all_runs() -> None:
    other = Row(
        namespace="team-b", name="dates", uid="v", phase="Failed", reason="out of memory", created=NOW
    )
    lines = drawn(all_runs([ROW, other], NOW, 160, with_namespace=True), 160).splitlines()
    assert lines[0].split()[:4] == ["NAMESPACE", "NAME", "PHASE", "STEP"]
    assert lines[1].split() == [
        *(
            "team-a",
            "arithmetic",
            "Training",
            "12/50",
            "0.52",
            "0.40",
            "5,323",
            "25%",
            "0.5",
            "3/4",
            "2",
            "10",
        ),
        *("7", "min"),
    ]
    assert lines[2].rstrip().endswith("out of memory")


def test_plain_lines_are_written_once() -> None:
    stream = io.StringIO()
    with Screen(None, "team-a", stream) as screen:
        screen.show([ROW])
        screen.show([replace(ROW, reward=0.6)])
        screen.show([replace(ROW, step=13)])
        screen.show([])
    lines = stream.getvalue().splitlines()
    assert [line.split("  ")[2] for line in lines[:-1]] == ["step 12/50", "step 13/50"]
    assert lines[-1] == "arithmetic  deleted"


def test_a_narrow_table_shows_names_and_reasons() -> None:
    other = Row(
        namespace="team-b", name="dates", uid="v", phase="Failed", reason="out of memory in a sampler"
    )
    header, *lines = drawn(all_runs([ROW, other], NOW, 80, with_namespace=False), 80).splitlines()
    assert header.split() == ["NAME", "PHASE", "STEP", "REWARD", "SAMPLERS", "REASON"]
    assert lines[0].split()[:3] == ["arithmetic", "Training", "12/50"]
    assert lines[1].rstrip().endswith("out of memory in a sampler")
