"""Draw the chart of the README from the tables of the benchmark page: `python -m benchmarks.chart`.

The page stays the only place where the figures are written by hand. The chart uses the colors that
the reader's browser prefers, light or dark.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Final, NamedTuple

ROOT: Final = Path(__file__).parents[1]
PAGE: Final = ROOT / "docs" / "explanation" / "benchmarks.md"
CHART: Final = ROOT / "docs" / "images" / "benchmarks.svg"

ROWS: Final = {"batch-read": "read", "batch-write, 400 MB": "write"}
SYSTEMS: Final = ("sbp-spark", "Kafka, default", "Kafka, fsync per batch")

_LEFT, _BAR, _GAP, _TOP, _SCALE = 110, 13, 14, 44, 0.42
_STYLE: Final = """
  <style>
    text { fill: #1f2328; } .b0 { fill: #0969da; } .b1 { fill: #9a6700; } .b2 { fill: #8c959f; }
    @media (prefers-color-scheme: dark) {
      text { fill: #f0f6fc; } .b0 { fill: #4493f8; } .b1 { fill: #d29922; } .b2 { fill: #6e7681; }
    }
  </style>"""


class Group(NamedTuple):
    """The throughputs of one scenario in MB/s, one for each of SYSTEMS that was measured."""

    name: str
    rates: tuple[int, ...]


def read_groups(page: str) -> list[Group]:
    """Return the figures of ROWS on the benchmark page; raise ValueError if a row is missing."""
    groups = list(_groups(page))
    if len(groups) != 3 * len(ROWS):
        raise ValueError(f"{PAGE} has {len(groups)} rows for the chart, not {3 * len(ROWS)}")
    return groups


def draw(groups: list[Group]) -> str:
    """Return the SVG: horizontal bars, grouped by scenario."""
    bars = sum(len(group.rates) for group in groups)
    height = _TOP + bars * _BAR + len(groups) * _GAP
    lines = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 760 {height}"'
        ' font-family="sans-serif" font-size="12" role="img"'
        ' aria-label="Throughput of Spark jobs in MB/s, sbp-spark beside Apache Kafka">' + _STYLE,
        f'  <text x="{_LEFT}" y="14">MB/s, more is better</text>',
    ]
    for index, system in enumerate(SYSTEMS):
        x = _LEFT + 170 * index
        lines.append(f'  <rect class="b{index}" x="{x}" y="22" width="10" height="10"/>')
        lines.append(f'  <text x="{x + 16}" y="31">{system}</text>')
    y = _TOP
    for group in groups:
        middle = y + len(group.rates) * _BAR / 2 + 4
        lines.append(
            f'  <text x="{_LEFT - 8}" y="{middle:g}" text-anchor="end">{group.name}</text>'
        )
        for index, rate in enumerate(group.rates):
            width = rate * _SCALE
            lines.append(
                f'  <rect class="b{index}" x="{_LEFT}" y="{y}" width="{width:.0f}"'
                f' height="{_BAR - 2}"/>'
            )
            lines.append(f'  <text x="{_LEFT + width + 5:.0f}" y="{y + 10}">{rate}</text>')
            y += _BAR
        y += _GAP
    return "\n".join([*lines, "</svg>", ""])


def _groups(page: str) -> Iterator[Group]:
    for line in page.splitlines():
        cells = [cell.strip() for cell in line.strip("|").split("|")]
        name = ROWS.get(cells[0].replace("`", ""))
        if name is None:
            continue
        # values, ours, Kafka's, ratio; and in tables of writes: Kafka's synced, ratio
        columns = cells[2:4] if name == "read" else [*cells[2:4], cells[5]]
        rates = tuple(int(re.sub(r"\D", "", cell)) for cell in columns)
        yield Group(f"{name} {cells[1]}", rates)


if __name__ == "__main__":
    CHART.write_text(draw(read_groups(PAGE.read_text(encoding="utf-8"))), encoding="utf-8")
