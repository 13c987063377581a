import io

import pytest
from hostile import HOSTILE, steering
from hypothesis import given, settings
from hypothesis import strategies as st
from rich.console import Console as RichConsole

from rl_trainer.observe.console import Console, View, sparkline
from rl_trainer.observe.metrics import StepRecord


class Clock:
    now = 100.0

    def __call__(self):
        return self.now


class Terminal(io.StringIO):
    encoding = "utf-8"

    def isatty(self):
        return True


def record(step, **fields):
    values = {
        "reward_mean": 0.5,
        "tokens_per_second": 3120.0,
        "response_length_mean": 9.8,
        "buffer_fill": 12.0,
        "staleness_max": 1.0,
    }
    return StepRecord(step=step, time=step, wall_seconds=1.0, **(values | fields))


@pytest.fixture
def clock():
    return Clock()


@pytest.fixture
def out():
    return io.StringIO()


@pytest.fixture
def plain(out, clock):
    return Console("run", max_steps=100, buffer_capacity=256, stream=out, clock=clock)


def test_a_step_is_one_line_with_what_is_known(plain, out):
    plain.step(record(12, groups_dropped={"reward_error": 3}), eta=80.0)
    assert out.getvalue() == (
        "step 12/100  reward 0.50  length 9.8  speed 3,120 tokens/s  buffer 12/256  staleness 1  dropped 3"
        "  ETA 1 min 20 s\n"
    )


def test_what_is_not_measured_is_left_out(plain, out):
    plain.step(StepRecord(step=1, time=0, wall_seconds=1.0, reward_mean=-0.25))
    assert out.getvalue() == "step 1/100  reward -0.25\n"


def test_steps_are_throttled_and_evaluations_are_not(plain, out, clock):
    for step in range(1, 31):
        clock.now += 0.2
        plain.step(record(step))
        if step == 10:
            plain.evaluation(step, 0.75)
    lines = out.getvalue().splitlines()
    steps = [line.split()[1] for line in lines if "reward" in line]
    assert steps == ["1/100", "6/100", "10/100", "11/100", "16/100", "21/100", "26/100"]
    assert lines.count("step 10  held-out 0.75") == 1


def test_the_end_of_a_run_names_its_last_step_and_result(plain, out):
    plain.step(record(1))
    plain.step(record(2))
    summary = {
        "stop_reason": "targetReward",
        "steps": 2,
        "wall_seconds": 65.0,
        "heldout_start": 0.44,
        "heldout_end": 0.953,
        "reward_curve": [0.4, 0.6] * 5 + [None] + [0.8, 1.0] * 5,
        "completion_tokens_per_second": 3183.4,
        "samples_per_second": 314.2,
        "groups_trained": 2560,
        "groups_dropped": {"reward_error": 4, "stale": 0},
    }
    plain.finish(summary, "runs/a/report.html")
    assert out.getvalue().splitlines()[1:] == [
        "step 2/100  reward 0.50  length 9.8  speed 3,120 tokens/s  buffer 12/256  staleness 1",
        "Target reached after 2 steps, 1 min 05 s.",
        "  held-out  0.44 \u2192 0.95",
        "  reward    0.50 \u2192 0.90",
        "  speed     3,183 tokens/s, 314 answers/s",
        "  groups    2,560 trained; dropped 4 (reward error 4)",
        "  report    runs/a/report.html",
    ]


def test_a_run_that_did_nothing_ends_with_a_sentence(plain, out):
    plain.finish({"stop_reason": "interrupted", "steps": 0, "wall_seconds": 1.0})
    assert out.getvalue().splitlines()[0] == "Interrupted after 0 steps, 1.0 s."


def test_phases_are_told_until_steps_are_listed(plain, out):
    plain.phase("starting Ray")
    plain.phase("starting Ray")
    plain.phase("training")
    plain.step(record(1))
    plain.phase("checkpoint")
    plain.phase("training")
    assert out.getvalue().splitlines()[:2] == ["starting Ray", "training"]
    assert "checkpoint" not in out.getvalue()


def test_the_warm_start_is_throttled_but_its_scores_are_told(plain, out):
    plain.warm_start(1, 60, 2.5)
    plain.warm_start(2, 60, 2.0)
    plain.warm_start(3, 60, 1.5, 0.25)
    assert out.getvalue().splitlines() == [
        "warm start 1/60  loss 2.500",
        "warm start 3/60  loss 1.500  score 0.25",
    ]


def test_an_encoding_without_arrows_and_blocks_gets_other_characters(clock):
    raw = io.BytesIO()
    out = io.TextIOWrapper(raw, encoding="ascii")
    console = Console("run", max_steps=2, stream=out, clock=clock)
    console.message("caf\u00e9")
    console.step(record(1, reward_mean=-1.0), eta=61.0)
    console.finish({"steps": 1, "heldout_start": 0.5, "heldout_end": 1.0, "wall_seconds": 61.0})
    text = raw.getvalue().decode("ascii")
    assert "caf?" in text
    assert "0.50 -> 1.00" in text
    assert "ETA 1 min 01 s" in text


def test_a_reader_that_went_away_does_not_stop_the_run(clock):
    class Gone(io.StringIO):
        def write(self, text):
            raise BrokenPipeError

    console = Console("run", max_steps=2, stream=Gone(), clock=clock)
    console.message("anyone?")
    console.step(record(1))
    console.warning("anyone?")
    console.finish({"steps": 1, "wall_seconds": 1.0})


def test_a_terminal_gets_a_view_that_is_gone_at_the_end(monkeypatch):
    monkeypatch.setenv("TERM", "xterm-256color")
    monkeypatch.setenv("COLUMNS", "100")
    monkeypatch.delenv("NO_COLOR", raising=False)
    terminal = Terminal()
    with Console("run", max_steps=100, target=0.9, stream=terminal) as console:
        assert console._live is not None
        console.phase("training")
        console.step(record(42), eta=30.0)
        console.evaluation(40, 0.84)
        console._live.refresh()
        console.warning("the buffer is [bold]full[/bold]")
        console.finish({"stop_reason": "maxSteps", "steps": 42, "wall_seconds": 60.0})
    text = terminal.getvalue()
    assert "42/100" in text
    assert "target 0.90" in text
    assert "warning: the buffer is [bold]full[/bold]" in text
    assert "\x1b[36m" in text
    assert text.rstrip().endswith("none dropped")
    assert "\x1b[?25h" in text  # the cursor is back


@pytest.mark.parametrize(("name", "value"), [("NO_COLOR", "1"), ("TERM", "dumb"), ("RLTRAIN_PLAIN", "1")])
def test_the_user_s_wishes_are_honoured(monkeypatch, name, value):
    monkeypatch.setenv("TERM", "xterm-256color")
    monkeypatch.setenv(name, value)
    terminal = Terminal()
    with Console("run", max_steps=100, stream=terminal) as console:
        console.step(record(1), eta=30.0)
        if console._live is not None:
            console._live.refresh()
    assert "1/100" in terminal.getvalue()
    assert "\x1b[36m" not in terminal.getvalue()
    assert console._live is None
    if name != "NO_COLOR":
        assert "\x1b" not in terminal.getvalue()


@pytest.mark.parametrize("width", [24, 40, 60, 80, 120, 200])
@pytest.mark.parametrize("warm", [False, True])
def test_the_view_fits_every_terminal(width, warm):
    view = View("a-run-with-a-rather-long-name", 100_000, 0.9, 2048, Clock())
    for step in range(1, 100):
        view.add(record(step, reward_mean=step / 100, skipped_steps=2, groups_dropped={"stale": 7}), 3600.0)
    view.scores = [(0, 0.25), (90, 0.75)]
    view.warm_start = (30, 60, 1.25, 0.5) if warm else None
    out = io.StringIO()
    RichConsole(file=out, width=width, force_terminal=True, color_system=None).print(view)
    lines = out.getvalue().rstrip("\n").splitlines()
    assert max(len(line) for line in lines) <= width
    assert len(lines) <= 12
    text = "\n".join(lines)
    assert ("30/60" if warm else "99/100000") in text
    assert ("0.50" if warm else "0.75") in text


def test_a_view_before_anything_happened_can_be_drawn():
    out = io.StringIO()
    RichConsole(file=out, width=80).print(View("run", 100, None, None, Clock()))
    assert "starting" in out.getvalue()


def test_a_sparkline_runs_from_the_lowest_to_the_highest():
    assert sparkline([0, 1, 2, 3, 4, 5, 6, 7], 8) == "▁▂▃▄▅▆▇█"
    assert sparkline([0, 0, 7, 7], 2) == "▁█"
    assert sparkline([3.0, 3.0], 5) == "▄▄"
    assert sparkline([], 5) == ""


@given(st.lists(st.floats(-1e6, 1e6), max_size=60), st.integers(0, 40))
def test_a_sparkline_is_never_wider_than_asked(values, width):
    assert len(sparkline(values, width)) == min(width, len(values))


@settings(deadline=None)
@given(HOSTILE)
def test_what_a_program_or_a_reward_says_does_not_steer_the_terminal(text):
    out = io.StringIO()
    with Console("run", max_steps=3, stream=out) as console:
        console.phase(text)
        console.message(text)
        console.warning(text)
        console.finish({"stop_reason": text, "groups_dropped": {text: 1}, "groups_trained": 1})
    assert steering(out.getvalue()) == []
    drawn = io.StringIO()
    view = Console("run", max_steps=3, stream=io.StringIO())
    view.phase(text)
    RichConsole(file=drawn, width=80).print(view._view)
    assert steering(drawn.getvalue()) == []


def test_a_report_that_is_not_kept_is_not_named(out, clock):
    console = Console("run", max_steps=2, kept=False, stream=out, clock=clock)
    console.finish({"stop_reason": "maxSteps", "steps": 2, "wall_seconds": 1.0}, "/tmp/gone/report.html")
    assert "report" not in out.getvalue()
