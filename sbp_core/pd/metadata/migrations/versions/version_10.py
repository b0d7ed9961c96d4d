"""Version 10: the entries of a sealed range with several replicas, by number and digest."""

from __future__ import annotations

from typing import Final

from alembic import op
from sqlalchemy import BigInteger, Column, Integer, LargeBinary

revision: Final = "10"
down_revision: Final = "9"


def upgrade() -> None:
    """Add the columns: all ranges so far have one replica. Tell releases before, of SQLite."""
    op.add_column("ranges", Column("end_seq", BigInteger().with_variant(Integer, "sqlite")))
    op.add_column("ranges", Column("end_digest", LargeBinary))
    if op.get_bind().dialect.name == "sqlite":
        op.execute("UPDATE schema_version SET version = 10")
