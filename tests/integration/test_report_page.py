"""The report page in a real browser: it draws, it asks nobody for anything, and it is not blank."""

import math
import re
import shutil
import subprocess
from html.parser import HTMLParser
from pathlib import Path

import pytest
from PIL import Image

from rl_trainer.observe.examples import Example, write_examples
from rl_trainer.observe.metrics import NAN, MetricsWriter, StepRecord
from rl_trainer.observe.page import write_report
from rl_trainer.observe.summary import write_summary
from rl_trainer.observe.timeline import Span, TimelineWriter

HOSTILE = "</script><script>throw new Error('not escaped')</script><img src=x onerror=document.title=1>"
FLAGS = (
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-default-apps",
    "--disable-extensions",
    "--disable-sync",
    "--hide-scrollbars",
    "--host-resolver-rules=MAP * ~NOTFOUND",
    "--no-first-run",
    "--virtual-time-budget=5000",
)
SECONDS = 120


def browse(tmp_path, page, *options):
    """Runs Chromium on `page` and returns its output (the document with --dump-dom)."""
    found = [shutil.which(name) for name in ("chromium", "chromium-browser", "google-chrome")]
    program = next(filter(None, found), None)
    if program is None:
        pytest.fail(
            "no Chromium on this machine: run `make test`, which installs it, or `apt-get install chromium`"
        )
    profile = tmp_path / "profile"
    command = [
        program,
        *FLAGS,
        f"--user-data-dir={profile}",
        "--virtual-time-budget=5000",
        *options,
        page.as_uri(),
    ]
    try:
        result = subprocess.run(command, capture_output=True, text=True, timeout=SECONDS)
    finally:
        shutil.rmtree(profile, ignore_errors=True)
    assert result.returncode == 0, result.stderr
    return result.stdout


def without_policy(page):
    """The page without what forbids it to run other scripts, such as those of a test."""
    return re.sub(r'<meta http-equiv="Content-Security-Policy[^>]*>', "", page)


def step_record(step, steps):
    done = 1 / (1 + math.exp(-(step / steps - 0.4) * 9))
    noise = math.sin(step * 12.9898) * 0.5
    return StepRecord(
        step=step,
        time=1.7e9 + step,
        wall_seconds=1.0 + noise / 10,
        reward_mean=min(1.0, 0.4 + 0.5 * done + noise / 20),
        reward_std=0.3,
        heldout_score=0.45 + 0.5 * done if step % 5 == 0 else None,
        response_length_mean=12 - 3 * done,
        response_length_max=20 + step % 5,
        truncated_fraction=0.05 * (1 - done),
        kl=0.05 * done,
        entropy=0.9 - 0.6 * done,
        clip_fraction=0.01 + noise / 100,
        loss=noise / 20 if step != 7 else NAN,
        grad_norm=0.5 + noise / 5,
        learning_rate=3e-4 * min(1, step / 10),
        ratio_mean=1 + noise / 100,
        ratio_max=1.3 + noise / 10,
        mismatch_kl=2e-5 + noise * 1e-5,
        staleness_mean=0.5,
        staleness_max=step % 3,
        buffer_fill=16 + 8 * noise,
        buffer_in_rate=30 + noise,
        buffer_out_rate=31 - noise,
        tokens_per_second=3000 + 100 * noise,
        samples_per_second=300 + 10 * noise,
        completion_tokens=3000,
        time_generate=0.5,
        time_score=0.05,
        time_train=0.3,
        time_publish=0.02,
        time_wait=0.1,
        time_evaluate=0.2 if step % 5 == 0 else 0.0,
        groups_trained=32 * step,
        groups_dropped={"rewardError": step // 10},
        zero_variance_groups=step % 9,
        prompts=list(range(32)),
        weight_version=step,
    )


def make_run(folder, *, steps, evaluated=True, resumed=None, finished=True):
    folder.mkdir()
    with MetricsWriter(folder) as metrics, TimelineWriter(folder) as timeline:
        if evaluated:
            metrics.event("evaluation", step=0, score=0.4375)
        for step in range(1, steps + 1):
            if step == resumed:
                metrics.event("resumed", step=step - 1)
            record = step_record(step, steps)
            metrics.write(record)
            at = record.time
            timeline.write(
                [
                    Span("driver", "wait", at, at + 0.5),
                    Span("sampler 0", "generate", at, at + 0.9, {"group": step}),
                    Span("sampler 0", "score", at + 0.8, at + 0.85),
                    Span("learner 0", "train", at + 0.5, at + 0.8),
                ]
            )
    write_examples(
        folder,
        [
            Example(
                prompt="2 3 1",
                expected="1 2 3",
                before="2 3 1",
                after="1 2 3",
                before_right=False,
                after_right=True,
            ),
            Example(prompt=HOSTILE, expected=HOSTILE, before=HOSTILE, after=HOSTILE, after_right=False),
        ],
    )
    (folder / "run.yaml").write_text(
        "metadata:\n  name: quickstart\nspec:\n  seed: 1\n  model:\n    source: tiny\n"
        f"  task:\n    environment: prompts\n    promptTemplate: {HOSTILE!r}\n"
        "  stop:\n    maxSteps: 60\n    targetReward: 0.9\n"
    )
    if finished:
        write_summary(folder, name="quickstart", seed=1, stop_reason="targetReward")
    return write_report(folder)


class Page(HTMLParser):
    """What the tests look at in a dumped document."""

    def __init__(self, text):
        super().__init__()
        self.root, self.charts, self.spans, self.texts, self.errors = {}, {}, 0, [], None
        self._figure = None
        self.feed(text)
        self.text = " ".join(self.texts)

    def handle_starttag(self, tag, attributes):
        values = dict(attributes)
        if tag == "html":
            self.root = values
        elif tag == "figure":
            self._figure = values.get("data-chart")
            if self._figure:
                self.charts[self._figure] = {"points": 0, "marks": 0, "numbers": ""}
        elif self._figure and tag == "path":
            self.charts[self._figure]["points"] += len(re.findall(r"[MLV]", values["d"]))
            self.charts[self._figure]["numbers"] += values["d"]
        elif self._figure and tag == "circle":
            self.charts[self._figure]["points"] += 1
            self.charts[self._figure]["numbers"] += values["cx"] + values["cy"]
        elif self._figure and tag == "line" and "resumed" in values.get("class", ""):
            self.charts[self._figure]["marks"] += 1
        elif tag == "path" and "data-span" in values:
            self.spans += values["d"].count("M")

    def handle_endtag(self, tag):
        if tag == "figure":
            self._figure = None

    def handle_data(self, data):
        self.texts.append(data)


def drawn(page):
    """Asserts that everything was drawn without an error, and returns the charts."""
    assert page.root.get("data-problem") is None
    assert page.root.get("data-rendered") == "true", "the script did not reach its end"
    assert page.root["data-charts"] == str(len(page.charts))
    for name, chart in page.charts.items():
        assert chart["points"] > 0, f"chart {name} is empty"
        assert not re.search("NaN|undefined|Infinity", chart["numbers"]), f"chart {name}: {chart['numbers']}"
    return page.charts


@pytest.fixture(scope="module")
def report(tmp_path_factory):
    return make_run(tmp_path_factory.mktemp("runs") / "quickstart", steps=60, resumed=31)


def test_every_chart_of_a_real_run_is_drawn_without_an_error(tmp_path, report):
    page = Page(browse(tmp_path, report, "--window-size=1280,3000", "--dump-dom"))
    charts = drawn(page)
    assert set(charts) == {
        "reward", "response-length", "truncated", "zero-variance", "kl", "entropy", "clip-fraction", "ratio",
        "mismatch", "loss", "grad-norm", "learning-rate", "time", "tokens-per-second", "samples-per-second",
        "staleness", "buffer-fill", "buffer-rates",
    }  # fmt: skip
    assert min(chart["points"] for chart in charts.values()) >= 40
    assert all(chart["marks"] == 1 for chart in charts.values()), "the resume is marked in every chart"
    assert page.spans == 4 * 60
    for text in ("0.44", "0.95", "Target reached", "target 0.9", "resumed", "reward error", "1 2 3"):
        assert text in page.text, text
    assert page.text.count(HOSTILE) >= 5  # shown as text: prompt, expected, before, after, configuration


@pytest.mark.parametrize(
    ("name", "options", "expected"),
    [
        ("one-step", {"steps": 1, "evaluated": False}, {"reward", "time", "kl"}),
        ("two-evaluations", {"steps": 5, "finished": False}, {"reward", "loss"}),
        ("long", {"steps": 3000}, {"reward", "staleness"}),
    ],
)
def test_short_unfinished_and_long_runs_are_drawn(tmp_path, name, options, expected):
    page = Page(
        browse(tmp_path, make_run(tmp_path / name, **options), "--window-size=480,3000", "--dump-dom")
    )
    assert expected <= set(drawn(page))


def test_a_person_can_ask_for_values_times_and_all_examples(tmp_path, report):
    script = """<script>
      const chart = document.querySelector("#chart-kl svg"), box = chart.getBoundingClientRect();
      document.querySelector("[data-axis=elapsed]").click();
      chart.dispatchEvent(new PointerEvent("pointermove", {clientX: box.right - 12, clientY: box.top + 20}));
      document.body.dataset.tooltip = document.getElementById("tooltip").innerText;
      chart.dispatchEvent(new PointerEvent("pointerleave"));
      document.body.dataset.hidden = document.getElementById("tooltip").hidden;
      document.body.dataset.axis = chart.textContent;
      chart.dispatchEvent(new KeyboardEvent("keydown", {key: "ArrowRight"}));
      document.body.dataset.first = document.getElementById("tooltip").innerText;
    </script></body>"""
    page = tmp_path / "used.html"
    page.write_text(without_policy(report.read_text()).replace("</body>", script))
    dom = browse(tmp_path, page, "--window-size=1280,3000", "--dump-dom")
    body = re.search(r"<body([^>]*)>", dom)[1]
    assert re.search(r'data-tooltip="Step 60 .*?KL\s+0\.05', body, re.S), body
    assert 'data-hidden="true"' in body
    assert re.search(r'data-axis="[^"]*\d\u2009s', body)
    assert re.search(r'data-first="Step 0 .*?not measured here', body, re.S), body
    drawn(Page(dom))


@pytest.mark.parametrize(("width", "scheme"), [(1280, "light"), (1280, "dark"), (420, "light")])
def test_the_page_is_not_blank(tmp_path, report, width, scheme):
    target = tmp_path / "page.png"
    dark = ["--blink-settings=preferredColorScheme=0"] if scheme == "dark" else []
    browse(tmp_path, report, *dark, f"--window-size={width},1600", f"--screenshot={target}")
    image = Image.open(target).convert("RGB")
    small = image.resize((64, 64))
    colours = {pixel for _, pixel in image.getcolors(maxcolors=1 << 24)}
    background = image.getpixel((2, 2))
    assert image.size[0] == width or width < 500  # Chromium has a least window width
    assert len(colours) > 200
    assert (sum(background) > 600) == (scheme == "light")
    assert len({small.getpixel((x, y)) for x in range(64) for y in range(64)}) > 100


def test_the_file_names_no_other_place(report):
    text = Path(report).read_text()
    # The name of the SVG vocabulary is an identifier; no browser fetches it.
    assert re.findall(r"https?://[^\s\"'<]+", text.replace("http://www.w3.org/2000/svg", "")) == []


def test_a_script_that_is_not_ours_does_not_run(tmp_path, report):
    """The second wall, should a text ever come through unescaped: the page names the hash of its own script."""
    text = Path(report).read_text()
    injected = "<script>document.title = 1</script><img src=x onerror='document.title = 1'><base href='http://a.example'>"
    assert text.count("</header>") == 1
    page = tmp_path / "injected.html"
    page.write_text(text.replace("</header>", f"</header>{injected}"))
    dom = browse(tmp_path, page, "--dump-dom")
    assert 'data-rendered="true"' in dom, "our own script runs"
    assert "<title>1</title>" not in dom
    page.write_text(without_policy(page.read_text()))
    assert "<title>1</title>" in browse(tmp_path, page, "--dump-dom"), "without the policy it would"
