"""Words of messages."""

from __future__ import annotations

from typing import Final

_PLURALS: Final = {"batch": "batches"}


def counted(count: int, noun: str) -> str:
    """Return a number with its noun: 1 record, 2 records."""
    return f"{count} {noun if count == 1 else _PLURALS.get(noun, f'{noun}s')}"
