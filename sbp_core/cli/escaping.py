"""Text of others made safe to show: nothing in it may control a terminal or pretend to be a line.

Names, values and messages come from peers and files. Raw, an ESC sequence in them could move the
cursor, retitle the window or answer for the user, and a bidirectional control could show
`txt.exe` for `exe.txt`.
"""

from __future__ import annotations

import json
import unicodedata
from typing import Any, Final

_UNSAFE_CATEGORIES: Final = frozenset({"Cc", "Cf", "Cs", "Zl", "Zp"})
"""Controls (C0, DEL, C1), invisible format characters, lone surrogates, line separators."""
_JOINERS: Final = frozenset("\u200c\u200d")
"""Format characters that words of some languages, and emoji, are written with."""


def escape(text: str, *, spared: str = "") -> str:
    r"""Return the text with each unsafe character as \n, \x1b, \u202e and the like.

    Those in `spared` stay. The result is one line, unless "\n" is spared.
    """
    if text.isprintable():  # almost always, and quick to tell
        return text
    return "".join(
        _shown(char) if _is_unsafe(char) and char not in spared else char for char in text
    )


def one_line(text: str) -> str:
    """Return the text in one line, each stretch of white space as one space, safe to show."""
    return escape(" ".join(text.split()))


def to_json(value: Any, *, is_ascii: bool = False) -> str:
    r"""Return a value in JSON, unsafe characters in its strings as \u001b and the like.

    That is the same JSON for programs. With `is_ascii` everything outside of ASCII is written so.
    """
    text = json.dumps(value, ensure_ascii=is_ascii)
    if text.isprintable():
        return text
    return "".join(_json_shown(char) if _is_unsafe(char) else char for char in text)


def value_text(data: bytes) -> str:
    r"""Return the bytes of a value as text for a terminal: tabs stay, what is not UTF-8 is \xff."""
    return escape(data.decode("utf-8", errors="backslashreplace"), spared="\t")


def _is_unsafe(char: str) -> bool:
    return unicodedata.category(char) in _UNSAFE_CATEGORIES and char not in _JOINERS


def _shown(char: str) -> str:
    return char.encode("unicode_escape").decode("ascii")


def _json_shown(char: str) -> str:
    return json.dumps(char)[1:-1] if char != "\x7f" else "\\u007f"
