"""Names of consumer groups."""

from __future__ import annotations

import re
from typing import Final

from sbp_core.limits import GROUP_NAME_LENGTH_MAX

GROUP_NAMES: Final = f"1 to {GROUP_NAME_LENGTH_MAX} of the characters A-Z a-z 0-9 . _ -"
_GROUP: Final = re.compile(rf"[A-Za-z0-9._-]{{1,{GROUP_NAME_LENGTH_MAX}}}")


def maybe_group(text: str) -> str | None:
    """Return the name of a group, None if no group can be called so."""
    return text if _GROUP.fullmatch(text) else None
