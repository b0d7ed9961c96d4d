"""Durations, sizes, times and paths as people write and read them: 90s, 10GiB, 2025-01-31T09:30."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Final

from sbp_core.errors import ConfigurationError

_SHOWN_MAX: Final = 60
_DIGITS_MAX: Final = 100
"""Longer texts are not numbers: Python refuses to parse thousands of digits."""
_UNITS_MS: Final = {"s": 1_000, "m": 60_000, "h": 3_600_000, "d": 86_400_000}
_UNITS_BYTES: Final = {"KiB": 2**10, "MiB": 2**20, "GiB": 2**30, "TiB": 2**40}


def is_number(text: str) -> bool:
    """Whether a text is a whole number, 0 or more."""
    return len(text) <= _DIGITS_MAX and text.isascii() and text.isdigit()


def is_offset(text: str) -> bool:
    """Whether a text is a whole number, 0 or more, of 63 bits."""
    return is_number(text) and int(text) < 2**63


def quoted(text: str) -> str:
    """Return what was written, in quotes and not too long, for an error."""
    return repr(text if len(text) <= _SHOWN_MAX else f"{text[:_SHOWN_MAX]}...")


def parse_path(text: str) -> str:
    """Return the path of a file or folder. Raises ConfigurationError if the text cannot be one."""
    if not text:  # it would be the working directory
        raise ConfigurationError("the path is empty; write . for the working directory")
    if "\0" in text:
        raise ConfigurationError(f"{quoted(text)} is not a path: it has a NUL character")
    return text


def parse_timestamp(text: str) -> datetime:
    """Return a time since 1970; one without a zone is UTC. Raises ConfigurationError."""
    try:
        moment = datetime.fromisoformat(text)
    except ValueError:
        moment = None
    if moment is not None and moment.tzinfo is None:
        moment = moment.replace(tzinfo=UTC)
    if moment is None or moment.timestamp() < 0:
        raise ConfigurationError(
            f"{quoted(text)} is not a time since 1970 such as 2025-01-31T09:30:00"
        )
    return moment


def parse_duration_ms(text: str) -> int:
    """Return how many ms a time such as 90s, 30m, 12h or 7d has. Raises ConfigurationError."""
    return _scaled(text, _UNITS_MS, "a time such as 90s, 30m, 12h or 7d", "ms")


def parse_size(text: str) -> int:
    """Return how many bytes a size such as 500MiB or 10GiB has. Raises ConfigurationError."""
    return _scaled(text, _UNITS_BYTES, "a size such as 500MiB or 10GiB", "bytes")


def show_duration(duration_ms: int) -> str:
    """Return a time as `parse_duration_ms` reads it, such as 7d; ms if it is no whole second."""
    return _unscaled(duration_ms, _UNITS_MS, "ms")


def show_size(size_bytes: int) -> str:
    """Return a size as `parse_size` reads it, such as 10GiB; bytes if it is no whole KiB."""
    return _unscaled(size_bytes, _UNITS_BYTES, "B")


def show_retention(period_ms: int, size_bytes: int) -> str:
    """Return how long records are kept, and how much of them; 0 is no limit."""
    period = [show_duration(period_ms)] if period_ms else []
    size = [show_size(size_bytes)] if size_bytes else []
    return ", ".join(period + size) or "for ever"


def round_size(size_bytes: int) -> str:
    """Return about a size, in the largest unit of which there is one: 12.3 GiB."""
    value, units = float(size_bytes), iter(("KiB", "MiB", "GiB", "TiB", "PiB"))
    unit = "B"
    while value >= 1024 and (larger := next(units, None)) is not None:
        value, unit = value / 1024, larger
    return f"{size_bytes} B" if unit == "B" else f"{value:.1f} {unit}"


def _scaled(text: str, units: Mapping[str, int], expected: str, noun: str) -> int:
    """Return a number times its unit; 0 needs no unit."""
    unit = next((each for each in units if text.endswith(each)), "")
    number = text.removesuffix(unit)
    if not is_number(number) or (not unit and text != "0"):
        raise ConfigurationError(f"{quoted(text)} is not 0 or {expected}")
    value = int(number) * units.get(unit, 1)
    if value >= 2**63:
        raise ConfigurationError(f"{quoted(text)} is more {noun} than a 64-bit number can hold")
    return value


def _unscaled(value: int, units: Mapping[str, int], smallest: str) -> str:
    """Return a number with the largest unit of which it is a multiple."""
    unit = max(
        (each for each in units if value % units[each] == 0), key=units.__getitem__, default=""
    )
    return f"{value // units[unit]}{unit}" if unit else f"{value}{smallest}"
