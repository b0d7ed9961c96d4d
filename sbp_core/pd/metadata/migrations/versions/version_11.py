"""Version 11: the range servers that are being drained."""

from __future__ import annotations

from typing import Final

from alembic import op
from sqlalchemy import BigInteger, Column, Integer

revision: Final = "11"
down_revision: Final = "10"


def upgrade() -> None:
    """Add the table: no server is drained so far. Tell releases before, of SQLite."""
    integer = BigInteger().with_variant(Integer, "sqlite")
    server_id = Column("server_id", integer, nullable=False, primary_key=True, autoincrement=False)
    op.create_table("draining", server_id)
    if op.get_bind().dialect.name == "sqlite":
        op.execute("UPDATE schema_version SET version = 11")
