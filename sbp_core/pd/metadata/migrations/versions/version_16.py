"""Version 16, of release 0.2.0: all that was added after release 0.1.0.

Rights, restores, members of groups, claims of producers and properties of streams have tables of
their own, which are empty at first. The last commit is in one table for both homes.
"""

from __future__ import annotations

from typing import Final

from alembic import op
from sqlalchemy import BigInteger, Column, ForeignKey, Integer, Text

revision: Final = "16"
down_revision: Final = "11"

_TEXT: Final = Text().with_variant(Text(collation="C"), "postgresql")
_INTEGER: Final = BigInteger().with_variant(Integer, "sqlite")


def upgrade() -> None:
    """Add the tables and columns. In SQLite, `add_checksums` then builds all tables again."""
    key = (_text(name, is_key=True) for name in ("subject", "granted_right", "pattern"))
    op.create_table("grants", *key, sqlite_with_rowid=False)
    op.add_column("txns", Column("subject", _TEXT))
    op.create_table(
        "restores",
        _text("backup_id", is_key=True),
        _integer("began_at_ms"),
        Column("completed_at_ms", _INTEGER),
    )
    _add_groups()
    op.create_table(
        "producer_claims",
        _text("producer", is_key=True),
        _text("subject"),
        _integer("claimed_at_ms"),
        sqlite_with_rowid=False,
    )
    op.create_index("producer_claims_by_time", "producer_claims", ["claimed_at_ms"])
    op.create_table(
        "stream_properties",
        _integer("stream_id", "streams.stream_id", is_key=True),
        _text("key", is_key=True),
        _text("value"),
    )
    _add_last_commit()


def _add_groups() -> None:
    group = "consumer_groups.group_name"
    op.create_table(
        "consumer_groups",
        _text("group_name", is_key=True),
        _integer("generation"),
        sqlite_with_rowid=False,
    )
    op.create_table(
        "group_members",
        _text("group_name", group, is_key=True),
        _text("member_id", is_key=True),
        _text("patterns"),
        _integer("session_timeout_ms"),
        _integer("handover_timeout_ms"),
        Column("subject", _TEXT),
        _integer("joined"),
        sqlite_with_rowid=False,
    )
    op.create_table(
        "group_streams",
        _text("group_name", group, is_key=True),
        _integer("stream_id", "streams.stream_id", is_key=True),
        _text("member_id"),
        _integer("since"),
        Column("revoked", _INTEGER),
        Column("heir", _TEXT),
        sqlite_with_rowid=False,
    )
    op.create_index("group_streams_by_member", "group_streams", ["group_name", "member_id"])
    op.create_index("group_streams_by_stream", "group_streams", ["stream_id"])


def _add_last_commit() -> None:
    content = Column("content", _TEXT)
    if op.get_bind().dialect.name == "postgresql":
        op.add_column("last_commit", content)
        return
    op.create_table("last_commit", _integer("number"), content)
    op.execute("INSERT INTO last_commit SELECT coalesce(max(commit_number), 0), NULL FROM content")
    op.drop_table("content")
    op.execute("UPDATE schema_version SET version = 16")  # so release 0.1.0 refuses the file


def _text(name: str, parent: str | None = None, *, is_key: bool = False) -> Column[str]:
    return Column(name, _TEXT, *_reference(parent), nullable=False, primary_key=is_key)


def _integer(name: str, parent: str | None = None, *, is_key: bool = False) -> Column[int]:
    return Column(
        name,
        _INTEGER,
        *_reference(parent),
        nullable=False,
        primary_key=is_key,
        autoincrement=False,
    )


def _reference(parent: str | None) -> tuple[ForeignKey, ...]:
    return () if parent is None else (ForeignKey(parent, ondelete="CASCADE"),)
