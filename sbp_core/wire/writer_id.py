"""The ids of writers that number their batches (SPEC "APPEND", extension)."""

from __future__ import annotations

import re
from typing import Final

from sbp_core import limits

_WRITER_ID: Final = re.compile(rf"[A-Za-z0-9._-]{{1,{limits.WRITER_ID_LENGTH_MAX}}}")


def is_writer_id(text: str) -> bool:
    """Whether a writer may be called so."""
    return _WRITER_ID.fullmatch(text) is not None
