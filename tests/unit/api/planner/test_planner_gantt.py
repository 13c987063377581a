"""One step as a picture."""

from __future__ import annotations

import xml.etree.ElementTree as ET

from rl_api.planner.gantt import MOST_ROWS, as_svg, as_text, rows_of
from rl_api.planner.simulated import Span

SPANS = [
    Span("learner 0", "sample", 0.0, 5.0),
    Span("learner 0", "switch", 5.0, 6.0),
    Span("learner 0", "learn", 6.0, 9.0),
    Span("sampler 1", "sample", 0.0, 6.0),
    Span("learner 0", "publish", 9.0, 10.0),
]


def test_text_has_a_row_for_each_device_and_says_what_letters_are() -> None:
    assert as_text(SPANS, 10.0, width=10) == [
        "learner 0 |sssssxLLLp|",
        "sampler 1 |ssssss....|",
        "           0     10 s",
        "           s sampler decodes, L learner computes, x devices change hands, p new weights travel",
    ]


def test_of_many_devices_that_do_the_same_a_few_are_drawn() -> None:
    spans = [Span(f"learner {index}", "learn", 0.0, 1.0) for index in range(100)]
    spans += [Span(f"sampler {index}", "sample", 0.0, 1.0) for index in range(100, 120)]
    names = [name for name, _ in rows_of(spans)]
    assert len(names) == MOST_ROWS
    assert names[0] == "learner 0"
    assert names[5:7] == ["learner 5 (+94)", "sampler 100"]


def test_the_picture_is_valid_and_to_scale() -> None:
    root = ET.fromstring(as_svg(SPANS, 10.0, "hybrid <1>"))
    rectangles = [one for one in root.iter("{http://www.w3.org/2000/svg}rect") if len(one)]
    assert len(rectangles) == len(SPANS)
    widths = [float(one.get("width", "0")) for one in rectangles]
    assert widths[0] == max(widths[:4])
    assert abs(widths[0] / widths[1] - 5.0) < 0.01
    assert "hybrid <1>" in [one.text for one in root.iter("{http://www.w3.org/2000/svg}text")]
