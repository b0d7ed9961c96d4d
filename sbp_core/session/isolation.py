"""Isolation classes: names that a peer gives its connection, to be served apart from others."""

from __future__ import annotations

import re
from typing import Final

from sbp_core import limits

_NAME: Final = re.compile(rf"[A-Za-z0-9._-]{{1,{limits.ISOLATION_LENGTH_MAX}}}", re.ASCII)


def is_isolation_class(name: str) -> bool:
    """Whether a connection may name this class. The name is opaque; it means nothing by itself."""
    return _NAME.fullmatch(name) is not None
