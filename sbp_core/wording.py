"""Words of messages, and texts of others that are made safe to show."""

from __future__ import annotations

import unicodedata
from collections.abc import Collection
from itertools import islice
from typing import Final

_LISTED_MAX: Final = 20
_PLURALS: Final = {"batch": "batches"}
_UNSAFE_CATEGORIES: Final = frozenset({"Cc", "Cf", "Cs", "Zl", "Zp"})
"""Controls (C0, DEL, C1), invisible format characters, lone surrogates, line separators."""
_JOINERS: Final = frozenset("\u200c\u200d")
"""Format characters that words of some languages, and emoji, are written with."""


def counted(count: int, noun: str) -> str:
    """Return a number with its noun: 1 record, 2 records."""
    return f"{count} {noun if count == 1 else _PLURALS.get(noun, f'{noun}s')}"


def listed(things: Collection[object], separator: str = ", ") -> str:
    """Return things in one line: the first 20 of many, and the number of the others."""
    shown = separator.join(map(str, islice(things, _LISTED_MAX)))
    more = len(things) - _LISTED_MAX
    return f"{shown}{separator}and {more} more" if more > 0 else shown


def escape(text: str, *, spared: str = "") -> str:
    r"""Return the text with each unsafe character as \n, \x1b, \u202e and the like.

    Those in `spared` stay. The result is one line, unless "\n" is spared.
    """
    if text.isprintable():  # almost always, and quick to check
        return text
    return "".join(
        _shown(char) if is_unsafe(char) and char not in spared else char for char in text
    )


def is_unsafe(char: str) -> bool:
    """Whether a character could change how the text around it is shown, or is not seen itself."""
    return unicodedata.category(char) in _UNSAFE_CATEGORIES and char not in _JOINERS


def _shown(char: str) -> str:
    return char.encode("unicode_escape").decode("ascii")
