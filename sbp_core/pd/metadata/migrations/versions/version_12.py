"""Version 12: the rights of subjects, and whose the decisions are."""

from __future__ import annotations

from typing import Final

from alembic import op
from sqlalchemy import Column, Text

revision: Final = "12"
down_revision: Final = "11"


def upgrade() -> None:
    """Add the table and the column: nobody has rights so far. Tell releases before, of SQLite."""
    text = Text().with_variant(Text(collation="C"), "postgresql")
    key = ("subject", "granted_right", "pattern")
    columns = (Column(name, text, nullable=False, primary_key=True) for name in key)
    op.create_table("grants", *columns, sqlite_with_rowid=False)
    op.add_column("txns", Column("subject", text))
    if op.get_bind().dialect.name == "sqlite":
        op.execute("UPDATE schema_version SET version = 12")
