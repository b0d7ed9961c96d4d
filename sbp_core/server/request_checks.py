"""The checks of numbers and counts in requests: what is accepted, and the error otherwise."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Final

from sbp_core import limits
from sbp_core.errors import invalid

NOT_GIVEN: Final = "(not given)"
_NOTHING_ELSE: Final[Mapping[int, str]] = MappingProxyType({})


def check_item_count(count: int) -> None:
    """Raise InvalidRequestError for more items than one request may have."""
    if count > limits.STREAMS_PER_REQUEST_MAX:
        raise invalid(
            f"the request has {count} items, and at most {limits.STREAMS_PER_REQUEST_MAX} are"
            " accepted; split it"
        )


def check_number(
    field: str,
    value: int,
    least: int,
    most: int | None = None,
    *,
    also: Mapping[int, str] = _NOTHING_ELSE,
) -> None:
    """Raise InvalidRequestError unless a number is within its bounds.

    `also` maps other numbers that are accepted to their meaning, such as -1 to NOT_GIVEN.
    """
    if value in also or (value >= least and (most is None or value <= most)):
        return
    allowed = f"{least} or more" if most is None else f"{least} to {most}"
    others = "".join(f", or {number} {meaning}" for number, meaning in also.items())
    raise invalid(f"{field} must be {allowed}{others}, got {value}")
