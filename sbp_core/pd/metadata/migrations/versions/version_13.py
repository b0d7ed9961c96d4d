"""Version 13: the backup that the cluster is restored from."""

from __future__ import annotations

from typing import Final

from alembic import op
from sqlalchemy import BigInteger, Column, Integer, Text

revision: Final = "13"
down_revision: Final = "12"


def upgrade() -> None:
    """Add the table: no cluster was restored so far. Tell releases before, of SQLite."""
    text = Text().with_variant(Text(collation="C"), "postgresql")
    integer = BigInteger().with_variant(Integer, "sqlite")
    op.create_table(
        "restores",
        Column("backup_id", text, nullable=False, primary_key=True),
        Column("began_at_ms", integer, nullable=False, autoincrement=False),
        Column("completed_at_ms", integer),
    )
    if op.get_bind().dialect.name == "sqlite":
        op.execute("UPDATE schema_version SET version = 13")
