"""Version 15: the properties of streams."""

from __future__ import annotations

from typing import Final

from alembic import op
from sqlalchemy import BigInteger, Column, ForeignKey, Integer, Text

revision: Final = "15"
down_revision: Final = "14"


def upgrade() -> None:
    """Add the table, which is empty at first. Tell releases before, of SQLite."""
    text = Text().with_variant(Text(collation="C"), "postgresql")
    op.create_table(
        "stream_properties",
        Column(
            "stream_id",
            BigInteger().with_variant(Integer, "sqlite"),
            ForeignKey("streams.stream_id", ondelete="CASCADE"),
            nullable=False,
            primary_key=True,
            autoincrement=False,
        ),
        Column("key", text, nullable=False, primary_key=True),
        Column("value", text, nullable=False),
    )
    if op.get_bind().dialect.name == "sqlite":
        op.execute("UPDATE schema_version SET version = 15")
