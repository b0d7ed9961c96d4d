"""Version 14: the members and streams of consumer groups, and who stages as which producer."""

from __future__ import annotations

from typing import Final

from alembic import op
from sqlalchemy import BigInteger, Column, ForeignKey, Integer, Text

revision: Final = "14"
down_revision: Final = "13"


def upgrade() -> None:
    """Add the tables, which are empty at first. Tell releases before, of SQLite."""
    text = Text().with_variant(Text(collation="C"), "postgresql")
    integer = BigInteger().with_variant(Integer, "sqlite")

    def group_name(*arguments: ForeignKey) -> Column[str]:
        return Column("group_name", text, *arguments, nullable=False, primary_key=True)

    def of(parent: str) -> ForeignKey:
        return ForeignKey(parent, ondelete="CASCADE")

    op.create_table(
        "consumer_groups",
        group_name(),
        Column("generation", integer, nullable=False),
        sqlite_with_rowid=False,
    )
    op.create_table(
        "group_members",
        group_name(of("consumer_groups.group_name")),
        Column("member_id", text, nullable=False, primary_key=True),
        Column("patterns", text, nullable=False),
        Column("session_timeout_ms", integer, nullable=False),
        Column("handover_timeout_ms", integer, nullable=False),
        Column("subject", text),
        Column("joined", integer, nullable=False),
        sqlite_with_rowid=False,
    )
    op.create_table(
        "group_streams",
        group_name(of("consumer_groups.group_name")),
        Column(
            "stream_id",
            integer,
            of("streams.stream_id"),
            nullable=False,
            primary_key=True,
            autoincrement=False,
        ),
        Column("member_id", text, nullable=False),
        Column("since", integer, nullable=False),
        Column("revoked", integer),
        Column("heir", text),
        sqlite_with_rowid=False,
    )
    op.create_index("group_streams_by_member", "group_streams", ["group_name", "member_id"])
    op.create_index("group_streams_by_stream", "group_streams", ["stream_id"])
    op.create_table(
        "producer_claims",
        Column("producer", text, nullable=False, primary_key=True),
        Column("subject", text, nullable=False),
        Column("claimed_at_ms", integer, nullable=False),
        sqlite_with_rowid=False,
    )
    op.create_index("producer_claims_by_time", "producer_claims", ["claimed_at_ms"])
    if op.get_bind().dialect.name == "sqlite":
        op.execute("UPDATE schema_version SET version = 14")
