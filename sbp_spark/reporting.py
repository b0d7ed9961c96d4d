"""What the connector tells people: its log, and how messages put what there may be many of."""

from __future__ import annotations

import logging
from collections.abc import Collection
from itertools import islice
from typing import Final

LOG: Final = logging.getLogger("sbp_spark")


_LISTED_MAX: Final = 20


def listed(things: Collection[object], separator: str = ", ") -> str:
    """Return things in one line; of many only the first, and how many more there are."""
    shown = separator.join(map(str, islice(things, _LISTED_MAX)))
    more = len(things) - _LISTED_MAX
    return f"{shown}{separator}and {more} more" if more > 0 else shown
