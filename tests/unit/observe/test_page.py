import json
import re

import pytest
import yaml

from rl_api.errors import RLTrainError
from rl_trainer.observe.examples import Example, write_examples
from rl_trainer.observe.metrics import MetricsWriter, StepRecord
from rl_trainer.observe.page import EXAMPLES_SHOWN, MAX_SPANS_PER_ACTOR, timeline_view, write_report
from rl_trainer.observe.summary import write_summary
from rl_trainer.observe.timeline import Span, TimelineWriter

RUN = """apiVersion: rltrain.dev/v1alpha1
kind: RLTrainingRun
metadata: {name: arithmetic}
spec:
  seed: 7
  stop: {maxSteps: 50, targetReward: 0.9}
"""


def data_of(page):
    text = re.search(r'<script type="application/json" id="data">(.*?)</script>', page, re.S)[1]
    return json.loads(text)


def step(number, **fields):
    return StepRecord(step=number, time=number, wall_seconds=1.0, reward_mean=0.5, **fields)


@pytest.fixture
def folder(tmp_path):
    (tmp_path / "run.yaml").write_text(RUN)
    with MetricsWriter(tmp_path) as metrics, TimelineWriter(tmp_path) as timeline:
        metrics.event("evaluation", step=0, score=0.25)
        for number in (1, 2, 3):
            metrics.write(step(number, heldout_score=0.5 if number == 3 else None, kl=0.1))
            timeline.write([Span("driver", "wait", number, number + 0.5)])
    return tmp_path


def test_the_page_is_made_from_the_files_again_and_again(folder):
    write_summary(folder, name="arithmetic", seed=7, stop_reason="targetReward")
    write_examples(folder, [Example(prompt="1 + 1", expected="2", before="3", after="2", after_right=True)])
    path = write_report(folder)
    first = path.read_text()
    assert path == folder / "report.html"
    assert write_report(folder).read_text() == first
    assert "<h1>arithmetic</h1>" in first
    assert "Target reached" in first
    assert "3 <small>of 50</small>" in first
    data = data_of(first)
    assert data["columns"]["heldout_score"] == [0.25, None, None, 0.5]
    assert data["sections"]["Result"][0]["target"] == 0.9
    assert data["timeline"]["actors"] == ["driver"]
    assert "{{" not in first


def test_a_run_that_goes_on_has_a_page(folder):
    page = write_report(folder).read_text()
    assert "Not finished" in page
    assert '<span class="from">0.25</span>' in page


def test_the_summary_of_an_earlier_attempt_does_not_hide_later_steps(folder):
    write_summary(folder, name="arithmetic", seed=7, stop_reason="maxSteps")
    with MetricsWriter(folder) as metrics:
        metrics.event("resumed", step=3)
        metrics.write(step(4))
    page = write_report(folder).read_text()
    assert "Not finished" in page
    assert "4 <small>of 50</small>" in page
    assert data_of(page)["marks"] == {"resumed": [3]}


def test_a_run_before_its_first_step_has_a_page(tmp_path):
    (tmp_path / "run.yaml").write_text(RUN)
    page = write_report(tmp_path).read_text()
    assert "No step has been finished yet." in page
    assert data_of(page)["sections"] == {}


def test_nothing_of_a_user_ends_the_script_or_fills_a_place(tmp_path):
    hostile = "</script><!-- {{css}} \u2028 <img src=x onerror=alert(1)> & \" '"
    write_examples(tmp_path, [Example(prompt=hostile, expected=hostile, before=hostile, after=hostile)])
    with MetricsWriter(tmp_path) as metrics, TimelineWriter(tmp_path) as timeline:
        metrics.write(step(1, groups_dropped={hostile: 2}))
        metrics.event("note", step=1, text=hostile)
        timeline.write([Span(hostile, hostile, 0.0, 1.0)])
    write_summary(tmp_path, name=hostile, seed=1, stop_reason=hostile)
    run = {"metadata": {"name": hostile}, "spec": {"model": {"source": hostile}}}
    (tmp_path / "run.yaml").write_text(yaml.safe_dump(run))
    page = write_report(tmp_path).read_text()
    assert page.count("<script") == page.count("</script>") == 2
    assert "<!--" not in page
    assert "<img" not in page
    assert (
        page.lower().count("&lt;/script&gt;") == 13
    )  # title, headline, reason, what, legend, 4 of the example, ...
    assert "{{css}}" in page
    assert data_of(page)["timeline"]["actors"] == [hostile.replace("\u2028", " ")]


def test_answers_are_marked_and_missing_ones_are_said(tmp_path):
    (tmp_path / "run.yaml").write_text(RUN)
    assert "Answers before and after" not in write_report(tmp_path).read_text()
    examples = [
        Example(prompt="p", expected="e", before="", before_right=False),
        Example(prompt="p", expected="e", before="b", before_right=True, after="a"),
    ]
    write_examples(tmp_path, examples)
    page = write_report(tmp_path).read_text()
    assert page.count('<span class="sign wrong"') == 1
    assert page.count('<span class="sign right"') == 1
    assert page.count('<span class="none">empty</span>') == 1
    assert page.count("not taken") == 1


def test_many_examples_fold(folder):
    write_examples(folder, [Example(prompt=str(i), expected="") for i in range(12)])
    page = write_report(folder).read_text()
    assert page.count('<tr class="more">') == 12 - EXAMPLES_SHOWN
    assert "Show all 12 examples" in page


def test_dropped_groups_are_listed_by_reason_largest_first(folder):
    assert "; 0 dropped." in write_report(folder).read_text()
    with MetricsWriter(folder) as metrics:
        drops = {"a": 1, "bB": 3, "c": 0}
        metrics.write(step(4, groups_trained=100, zero_variance_groups=25, groups_dropped=drops))
    page = write_report(folder).read_text()
    assert "100 groups trained on, 25 (25%) of them without signal; 4 dropped." in page
    assert page.index("<span>b b</span>") < page.index("<span>a</span>")
    assert "<span>c</span>" not in page


def test_the_configuration_is_folded_and_its_keys_are_coloured(folder):
    page = write_report(folder).read_text()
    assert '  <span class="key">seed</span>: 7\n' in page
    assert '<details class="card" id="config">' in page
    (folder / "run.yaml").unlink()
    assert "<details" not in write_report(folder).read_text()


def test_nothing_on_the_page_comes_from_the_network(folder):
    page = write_report(folder).read_text()
    links = re.findall(r"""(?:src|href|action|srcset)\s*=\s*["']?([^"'\s>]*)""", page.split("<script")[0])
    assert links == ["data:,"]
    assert not re.search(r"@import|url\(", page)
    assert "default-src 'none'" in page


def test_a_folder_without_a_run_and_a_broken_file_are_sentences(tmp_path):
    with pytest.raises(RLTrainError, match="holds no run"):
        write_report(tmp_path)
    (tmp_path / "run.yaml").write_text("a: [")
    with pytest.raises(RLTrainError, match=r"run\.yaml: is not YAML"):
        write_report(tmp_path)


def test_the_strip_shows_the_end_of_the_run_with_rows_as_data_flows():
    spans = [
        Span(actor, "generate" if actor.startswith("sampler") else "odd", float(second), second + 0.5)
        for second in range(200)
        for actor in ("learner 0", "sampler 10", "sampler 9", "buffer", "driver")
    ]
    view = timeline_view(spans)
    assert view["actors"] == ["driver", "sampler 9", "sampler 10", "buffer", "learner 0"]
    assert view["seconds"] == pytest.approx(60.0)
    assert view["names"] == [["generate", "blue"], ["odd", "sand"]]
    assert all(0 <= start <= end <= 60.0 for _, _, start, end, _ in view["spans"])
    dense = timeline_view([Span("a", "b", second / 100, second / 100 + 0.005) for second in range(1000)])
    assert len(dense["spans"]) == MAX_SPANS_PER_ACTOR
    assert timeline_view([]) is None


def test_spans_inside_others_are_deeper_and_overlapping_ones_are_not():
    view = timeline_view(
        [
            Span("a", "step", 0.0, 10.0),
            Span("a", "inner", 1.0, 4.0),
            Span("a", "innermost", 2.0, 3.0),
            Span("a", "second", 4.0, 5.0),
            Span("a", "overlapping", 9.0, 11.0),
        ]
    )
    assert [row[4] for row in view["spans"]] == [0, 1, 2, 1, 0]
