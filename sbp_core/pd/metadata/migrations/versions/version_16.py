"""Version 16: the last commit in one table for both homes; in SQLite, each row has a checksum."""

from __future__ import annotations

from typing import Final

from alembic import op
from sqlalchemy import BigInteger, Column, Integer, Text

revision: Final = "16"
down_revision: Final = "15"


def upgrade() -> None:
    """Keep the number of the last commit. `add_checksums` then builds SQLite's tables again."""
    content = Column("content", Text().with_variant(Text(collation="C"), "postgresql"))
    if op.get_bind().dialect.name == "postgresql":
        op.add_column("last_commit", content)
        return
    integer = BigInteger().with_variant(Integer, "sqlite")
    op.create_table("last_commit", Column("number", integer, nullable=False), content)
    op.execute("INSERT INTO last_commit SELECT coalesce(max(commit_number), 0), NULL FROM content")
    op.drop_table("content")
    op.execute("UPDATE schema_version SET version = 16")
