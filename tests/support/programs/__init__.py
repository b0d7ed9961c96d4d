"""Programs that tests start as processes of their own."""

from __future__ import annotations

import sys


def program(name: str, *arguments: object) -> list[str]:
    """Return the words that start a program of this folder; `tests/conftest.py` sets its path."""
    return [sys.executable, "-m", f"{__name__}.{name}", *map(str, arguments)]
