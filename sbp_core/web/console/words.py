"""How values look to people, in pages: the filters of the templates."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from typing import Final

from markupsafe import Markup

from sbp_core import wording
from sbp_core.client import StreamInfo
from sbp_core.quantities import round_size, show_retention

_SHORT: Final = ((10**9, "G"), (10**6, "M"), (10**3, "k"))
_FRACTION: Final = re.compile(r"\.\d+")
UNKNOWN: Final = "unknown"
_NAMED_MAX: Final = 10
"""Streams that are named in a list; the others are counted."""


def count_text(value: float | None) -> str:
    """Return a number with its thousands apart: 1,234,567."""
    return UNKNOWN if value is None else f"{value:,.0f}"


def counted(count: int, noun: str) -> str:
    """Return a number with its noun, its thousands apart: 1 record, 2,000 records."""
    return f"{count:,} {wording.counted(count, noun).partition(' ')[2]}"


def short_count(value: float) -> str:
    """Return a number in few characters, for the axis of a chart: 1.2M."""
    for unit, name in _SHORT:
        if abs(value) >= unit:
            return f"{value / unit:.3g}{name}"
    return f"{value:.3g}"


def rate_text(value: float | None) -> str:
    """Return records per second; small rates keep a digit."""
    if value is None:
        return UNKNOWN
    return f"{value:,.0f}/s" if value >= 10 or value == 0 else f"{value:.1f}/s"


def size_text(size_bytes: int | None) -> str:
    """Return a size in the largest unit of which there is one: 12.3 GiB."""
    return UNKNOWN if size_bytes is None else round_size(size_bytes)


def byte_rate_text(value: float | None) -> str:
    """Return bytes per second."""
    return UNKNOWN if value is None else f"{round_size(int(value))}/s"


def duration_text(duration_ms: float | None) -> str:
    """Return a time such as 0:01:30, or in days."""
    if duration_ms is None:
        return UNKNOWN
    try:
        return str(timedelta(seconds=max(int(duration_ms) // 1000, 0)))
    except OverflowError:
        return f"{int(duration_ms) // 1000} s"


def moment(time_ms: int) -> str:
    """Return the element of a time, ms since 1970 UTC, to the second."""
    try:
        at = datetime.fromtimestamp(time_ms // 1000, UTC)
    except (OverflowError, ValueError, OSError):
        return f"{time_ms} ms"
    return moment_element(at.isoformat())


def moment_element(iso_text: str) -> str:
    """Return the element of a time in ISO 8601; the text as it is if that is no time.

    The text of the element is in UTC. The script of the pages shows the time in the reader's zone.
    """
    try:
        at = datetime.fromisoformat(iso_text).astimezone(UTC)
    except (ValueError, OverflowError):
        return iso_text
    fraction = _FRACTION.search(iso_text)  # with all its digits, which a datetime may not have
    digits = fraction[0].rstrip("0").rstrip(".") if fraction else ""
    text = f"{at:%Y-%m-%d %H:%M:%S}{digits}"
    return Markup('<time datetime="{}Z" title="{} UTC">{} UTC</time>').format(
        text.replace(" ", "T"), text, text
    )


def retention_text(info: StreamInfo) -> str:
    """Return how long, and how much of, a stream is kept."""
    return show_retention(info.retention_period_ms, info.retention_bytes)


def streams_text(stream_ids: Sequence[int], names: Mapping[int, str]) -> str:
    """Return the names of streams, ids where names are not known; from _NAMED_MAX on, a count."""
    shown = [names.get(each) or str(each) for each in stream_ids[:_NAMED_MAX]]
    rest = len(stream_ids) - len(shown)
    return (", ".join(shown) or "-") + (f" and {rest} more" if rest else "")


FILTERS: Final[dict[str, Callable[..., str]]] = {
    "count": count_text,
    "counted": counted,
    "rate": rate_text,
    "size": size_text,
    "byte_rate": byte_rate_text,
    "duration": duration_text,
    "moment": moment,
    "retention": retention_text,
    "streams": streams_text,
}
