"""What stands on a command line, as values; argparse tells who calls what is wrong with it."""

from __future__ import annotations

import argparse
from datetime import UTC, datetime
from typing import Final

_DIGITS_MAX: Final = 100
"""More digits than this are no number: Python refuses to read thousands of them."""


def parse_positive(text: str) -> int:
    """Return a number, 1 or more."""
    if not _is_offset(text) or int(text) == 0:
        raise argparse.ArgumentTypeError(f"{text!r} is not a positive number")
    return int(text)


def parse_start(text: str) -> str | int:
    """Return an offset, `earliest` or `latest`."""
    if text in {"earliest", "latest"}:
        return text
    if not _is_offset(text):
        raise argparse.ArgumentTypeError(f"{text!r} is not earliest, latest or an offset")
    return int(text)


def parse_timestamp(text: str) -> datetime:
    """Return a time since 1970; one without a zone is UTC."""
    try:
        moment = datetime.fromisoformat(text)
    except ValueError:
        moment = None
    if moment is not None and moment.tzinfo is None:
        moment = moment.replace(tzinfo=UTC)
    if moment is None or moment.timestamp() < 0:
        raise argparse.ArgumentTypeError(
            f"{text!r} is not a time since 1970 such as 2025-01-31T09:30:00"
        )
    return moment


def parse_offset(text: str) -> int:
    """Return an offset."""
    if not _is_offset(text):
        raise argparse.ArgumentTypeError(f"{text!r} is not an offset")
    return int(text)


def parse_batch_number(text: str) -> int:
    """Return the number of a producer's batch."""
    if not _is_offset(text):
        raise argparse.ArgumentTypeError(f"{text[:30]!r} is not the number of a batch")
    return int(text)


def _is_offset(text: str) -> bool:
    is_short = len(text) <= _DIGITS_MAX
    return is_short and text.isascii() and text.isdigit() and int(text) < 2**63


def parse_separator(text: str) -> str:
    """Return text that is not empty."""
    if not text:
        raise argparse.ArgumentTypeError("the separator is empty")
    return text


def parse_duration_ms(text: str) -> int:
    """Return how many milliseconds a time such as 90s, 30m, 12h or 7d has."""
    unit_ms = {"s": 1_000, "m": 60_000, "h": 3_600_000, "d": 86_400_000}
    number, unit = (text[:-1], text[-1:]) if text != "0" else ("0", "s")
    if unit not in unit_ms or not (number.isascii() and number.isdigit()):
        raise argparse.ArgumentTypeError(f"{text!r} is not 0 or a time such as 90s, 30m, 12h or 7d")
    duration_ms = int(number) * unit_ms[unit]
    if duration_ms >= 2**63:
        raise argparse.ArgumentTypeError(f"{text!r} is longer than a 64-bit number of ms holds")
    return duration_ms


def parse_size(text: str) -> int:
    """Return how many octets a size such as 500MiB or 10GiB has."""
    unit_bytes = {"KiB": 2**10, "MiB": 2**20, "GiB": 2**30, "TiB": 2**40}
    number, unit = (text[:-3], text[-3:]) if text != "0" else ("0", "KiB")
    if unit not in unit_bytes or not (number.isascii() and number.isdigit()):
        raise argparse.ArgumentTypeError(f"{text!r} is not 0 or a size such as 500MiB or 10GiB")
    size_bytes = int(number) * unit_bytes[unit]
    if size_bytes >= 2**63:
        raise argparse.ArgumentTypeError(f"{text!r} is more than a 64-bit number of octets holds")
    return size_bytes
