"""Version 9: numbered by Alembic, with conditions that PostgreSQL understands too."""

from __future__ import annotations

from typing import Final

from alembic import op
from sqlalchemy import text

revision: Final = "9"
down_revision: Final = "8"


def upgrade() -> None:
    """Make the index of producers with a single batch again, and tell releases before."""
    op.drop_index("txns_one_shot", "txns")
    op.create_index(
        "txns_one_shot",
        "txns",
        ["decided_at_ms"],
        sqlite_where=text("substr(producer, 1, 5) = 'once-'"),
    )
    op.execute("UPDATE schema_version SET version = 9")
