"""The properties of streams: what they may be."""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Final

from sbp_core.errors import invalid
from sbp_core.quantities import quoted

PROPERTIES_MAX: Final = 64
"""Properties of a stream."""
PROPERTY_KEY_LENGTH_MAX: Final = 128
"""Characters of the key of a property."""
PROPERTY_VALUE_BYTES_MAX: Final = 1024
"""Bytes of the value of a property, in UTF-8."""

_KEY: Final = re.compile(rf"[A-Za-z0-9._-]{{1,{PROPERTY_KEY_LENGTH_MAX}}}")


def checked_properties(
    properties: Iterable[tuple[str, str | None]], count_max: int = 2 * PROPERTIES_MAX
) -> dict[str, str | None]:
    """Return properties by key; a value is None where there is to be none.

    A change may remove all properties of a stream and set as many others. Raises
    InvalidRequestError for more than `count_max`, for a key that is named twice, and for a key or
    value that no property can have.
    """
    found: dict[str, str | None] = {}
    for key, value in properties:
        if _KEY.fullmatch(key) is None:
            raise invalid(
                f"{quoted(key)} cannot be the key of a property: use 1 to {PROPERTY_KEY_LENGTH_MAX}"
                " of A-Z a-z 0-9 . _ -"
            )
        if key in found:
            raise invalid(f"property {key} is named twice")
        if value is not None and not _is_value(value):
            raise invalid(
                f"the value of property {key} must be at most {PROPERTY_VALUE_BYTES_MAX} bytes of"
                " UTF-8, without the character U+0000"
            )
        found[key] = value
    if len(found) > count_max:
        raise invalid(f"{len(found)} properties are more than {count_max}")
    return found


def _is_value(text: str) -> bool:
    try:
        return len(text.encode()) <= PROPERTY_VALUE_BYTES_MAX and "\0" not in text
    except UnicodeEncodeError:
        return False
