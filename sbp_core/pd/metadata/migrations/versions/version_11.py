"""Version 11: the tables of release 0.1.0, which later versions start from."""

from __future__ import annotations

from typing import Final

revision: Final = "11"
down_revision: Final = None


def upgrade() -> None:
    """Do nothing: stores before version 11 are refused (`tables.check_version`)."""
