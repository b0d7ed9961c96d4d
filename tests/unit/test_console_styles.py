"""The console's colours in both themes: enough contrast for text and controls (WCAG 2.2 AA)."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

import sbp_core.web.console

FOLDER = Path(sbp_core.web.console.__file__).parent
CSS = (FOLDER / "static" / "console.css").read_text(encoding="utf-8")
COLOURS = {
    name: values
    for name, *values in re.findall(
        r"--([\w-]+): light-dark\((#[0-9a-f]{6}), (#[0-9a-f]{6})\)", CSS
    )
}
"""By name: the colour in the light and in the dark theme."""
TEXTS = [
    *((colour, ground) for colour in ("text", "quiet", "accent") for ground in ("page", "panel")),
    *((colour, ground) for colour in ("good", "warn", "bad") for ground in ("page", "panel")),
    ("on-accent", "accent"),
    *(("page", series) for series in ("series-1", "series-3", "bad")),
]
"""Colours of text, and what is behind them."""
SHAPES = [
    *((f"series-{index}", "page") for index in range(1, 6)),
    ("control", "page"),
    ("control", "panel"),
]
"""Colours of lines and borders that have a meaning, and what is behind them."""


def luminance(colour):
    parts = [int(colour[at : at + 2], 16) / 255 for at in (1, 3, 5)]
    linear = [
        part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4 for part in parts
    ]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


def contrast(first, second):
    darker, lighter = sorted(map(luminance, (first, second)))
    return (lighter + 0.05) / (darker + 0.05)


@pytest.mark.parametrize("theme", [0, 1], ids=["light", "dark"])
@pytest.mark.parametrize(("least", "pairs"), [(4.5, TEXTS), (3.0, SHAPES)], ids=["texts", "shapes"])
def test_contrast(least, pairs, theme):
    found = {pair: contrast(*(COLOURS[name][theme] for name in pair)) for pair in pairs}
    assert {pair: value for pair, value in found.items() if value < least} == {}


def test_every_colour_is_one_of_those():
    rest = re.sub(r"--[\w-]+: light-dark\([^;]*;", "", CSS)
    assert re.findall(r"#[0-9a-f]{3,8}\b", rest) == []


def test_pages_have_no_script_or_style_of_their_own():
    for path in (FOLDER / "templates").glob("*.html"):
        text = path.read_text(encoding="utf-8")
        assert not re.search(r"\sstyle=|<style|\son\w+=|javascript:|https?://", text), path
        assert re.findall(r"<script[^>]*>", text) in ([], ['<script src="/static/console.js">'])
