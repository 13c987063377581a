"""The pictures of docs/placement.md in a real browser: each is drawn, none is blank."""

from __future__ import annotations

from pathlib import Path

from PIL import Image
from test_report_page import browse

IMAGES = Path(__file__).parents[2] / "docs" / "images"
LEARNING, SAMPLING = (0x42, 0x69, 0xD0), (0xEF, 0xB1, 0x18)


def test_the_pictures_are_drawn(tmp_path: Path) -> None:
    """All on one page, so that the browser starts once."""
    pictures = sorted(IMAGES.glob("placement-*.svg"))
    assert len(pictures) == 4
    shown = "".join(f'<img src="{path.as_uri()}" style="display:block;height:400px">' for path in pictures)
    (tmp_path / "page.html").write_text(f'<body style="margin:0">{shown}</body>')
    shot = tmp_path / "shot.png"
    browse(tmp_path, tmp_path / "page.html", f"--screenshot={shot}", "--window-size=1600,1600")
    with Image.open(shot) as image:
        seen = image.convert("RGB")
        height = seen.height // 4
        colours = [
            {colour for _, colour in seen.crop((0, top, seen.width, top + height)).getcolors(1 << 24) or []}
            for top in range(0, 4 * height, height)
        ]
    for found in colours:
        assert {LEARNING, SAMPLING} <= found
