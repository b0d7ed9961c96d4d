"""The tables of the metadata, declared once for both homes, SQLite and PostgreSQL.

A new database gets these tables. Alembic migrates a database that exists, by the scripts in
`migrations/versions`. A test compares the result of the migrations with this module.
"""

from __future__ import annotations

import uuid
from typing import Final

from sqlalchemy import (
    BigInteger,
    Column,
    ColumnElement,
    Connection,
    DateTime,
    ForeignKey,
    ForeignKeyConstraint,
    Index,
    Integer,
    LargeBinary,
    MetaData,
    PrimaryKeyConstraint,
    String,
    Table,
    Text,
    UniqueConstraint,
    bindparam,
    insert,
    literal_column,
    text,
)

from sbp_core.errors import ConfigurationError

SCHEMA_VERSION: Final = 16
"""The newest version, which is the revision of the newest migration."""
SCHEMA_VERSION_BEFORE: Final = 11
"""The version of release 0.1.0, which is migrated. No release had the versions between the two."""

COMMON: Final = MetaData()
"""The tables of both homes."""
SQLITE: Final = MetaData()
"""The tables of an SQLite file only."""
POSTGRESQL: Final = MetaData()
"""The tables of a PostgreSQL database only."""

_INTEGER: Final = BigInteger().with_variant(Integer, "sqlite")
"""64 bits in both homes; in SQLite the key of a table that is called INTEGER is its rowid."""
_TEXT: Final = Text().with_variant(Text(collation="C"), "postgresql")
"""Compared and sorted by code point in both homes."""
_STREAM: Final = "streams.stream_id"
_GROUP: Final = "consumer_groups.group_name"


COUNT_MAX: Final = bindparam("count_max", type_=BigInteger())
"""How many rows a statement returns at most."""
ONE: Final[ColumnElement[int]] = literal_column("1")
"""The first row only."""


def _integer(name: str, *arguments: ForeignKey, is_key: bool = False) -> Column[int]:
    return Column(
        name, _INTEGER, *arguments, nullable=False, primary_key=is_key, autoincrement=False
    )


def _numbered(name: str) -> Column[int]:
    """Return a key that the database counts."""
    return Column(name, _INTEGER, primary_key=True, autoincrement=True)


def _text(name: str, *arguments: ForeignKey, is_key: bool = False) -> Column[str]:
    return Column(name, _TEXT, *arguments, nullable=False, primary_key=is_key)


def _bytes(name: str) -> Column[bytes]:
    return Column(name, LargeBinary, nullable=False)


def _of(parent: str) -> ForeignKey:
    """Return a reference to a row that takes this one with it when it is deleted."""
    return ForeignKey(parent, ondelete="CASCADE")


cluster: Final = Table(
    "cluster",
    COMMON,
    _text("id"),
    _integer("revision"),
    _integer("last_stream_id"),
    _integer("last_server_id"),
)
"""One row: the cluster's id, its revision, and the last ids of streams and servers."""

streams: Final = Table(
    "streams",
    COMMON,
    _integer("stream_id", is_key=True),
    Column("name", _TEXT, unique=True),
    _integer("replica_count"),
    _integer("ack_count"),
    _integer("retention_period_ms"),
    _integer("created_at_ms"),
    _integer("retention_bytes"),
)

ranges: Final = Table(
    "ranges",
    COMMON,
    _integer("stream_id", _of(_STREAM), is_key=True),
    _integer("range_index", is_key=True),
    _integer("start_offset"),
    Column("end_offset", _INTEGER),
    _integer("ack_count"),
    Column("end_seq", _INTEGER),
    Column("end_digest", LargeBinary),
    sqlite_with_rowid=False,
)
"""The end is NULL while a range is open; `end_seq` and `end_digest` also if it has one replica."""

replicas: Final = Table(
    "replicas",
    COMMON,
    _integer("stream_id", is_key=True),
    _integer("range_index", is_key=True),
    _integer("position", is_key=True),
    _integer("server_id"),
    ForeignKeyConstraint(
        ("stream_id", "range_index"),
        ("ranges.stream_id", "ranges.range_index"),
        ondelete="CASCADE",
    ),
    Index("replicas_by_server", "server_id", "stream_id", "range_index"),
    sqlite_with_rowid=False,
)

servers: Final = Table("servers", COMMON, _integer("server_id", is_key=True), _text("address"))

draining: Final = Table("draining", COMMON, _integer("server_id", is_key=True))
"""The range servers that are being drained."""

server_secrets: Final = Table(
    "server_secrets", COMMON, _integer("server_id", is_key=True), _text("secret")
)
"""By which the placement driver and a range server know each other."""

grants: Final = Table(
    "grants",
    COMMON,
    _text("subject", is_key=True),
    _text("granted_right", is_key=True),
    _text("pattern", is_key=True),
    sqlite_with_rowid=False,
)
"""Rights of subjects on the streams, or groups, whose names match a pattern."""

log_marks: Final = Table(
    "log_marks",
    COMMON,
    _integer("server_id", is_key=True),
    _text("log_id"),
    _integer("position"),
)
"""How far each range server reported that its log is synced."""

cursors: Final = Table(
    "cursors",
    COMMON,
    _text("group_name", is_key=True),
    _integer("stream_id", _of(_STREAM), is_key=True),
    _integer("next_offset"),
    _integer("committed_at_ms"),
    Index("cursors_by_stream", "stream_id"),
    sqlite_with_rowid=False,
)

consumer_groups: Final = Table(
    "consumer_groups",
    COMMON,
    _text("group_name", is_key=True),
    _integer("generation"),
    sqlite_with_rowid=False,
)
"""The groups that have members."""

group_members: Final = Table(
    "group_members",
    COMMON,
    _text("group_name", _of(_GROUP), is_key=True),
    _text("member_id", is_key=True),
    _text("patterns"),
    _integer("session_timeout_ms"),
    _integer("handover_timeout_ms"),
    Column("subject", _TEXT),
    _integer("joined"),
    sqlite_with_rowid=False,
)
"""The patterns are separated by spaces; `subject` is NULL for a member that may read anything."""

group_streams: Final = Table(
    "group_streams",
    COMMON,
    _text("group_name", _of(_GROUP), is_key=True),
    _integer("stream_id", _of(_STREAM), is_key=True),
    _text("member_id"),
    _integer("since"),
    Column("revoked", _INTEGER),
    Column("heir", _TEXT),
    Index("group_streams_by_member", "group_name", "member_id"),
    Index("group_streams_by_stream", "stream_id"),
    sqlite_with_rowid=False,
)
"""The streams that members hold: since a generation, and revoked since one, for an heir."""

writers: Final = Table(
    "writers",
    COMMON,
    _integer("stream_id", _of(_STREAM), is_key=True),
    _integer("range_index"),
    _bytes("writers"),
)
"""The writers at the end of the last sealed range of each stream."""

schemas: Final = Table(
    "schemas",
    COMMON,
    _integer("stream_id", _of(_STREAM), is_key=True),
    _integer("version", is_key=True),
    _text("fingerprint"),
    _bytes("schema"),
    _integer("registered_at_ms"),
)
"""The versions of the schema of each stream that has one, from 1 on."""

stream_properties: Final = Table(
    "stream_properties",
    COMMON,
    _integer("stream_id", _of(_STREAM), is_key=True),
    _text("key", is_key=True),
    _text("value"),
)
"""With a rowid, as `schemas`: then a row fits into a page, and SQLite reads it whole."""

IS_ONE_SHOT: Final = text("substr(producer, 1, 5) = 'once-'")
"""The producers with a single batch. No index of `producer` is of use for this condition."""

txns: Final = Table(
    "txns",
    COMMON,
    _numbered("txn_number"),
    _text("producer"),
    _integer("batch_number"),
    _integer("record_count"),
    _bytes("digest"),
    _integer("decided_at_ms"),
    Column("subject", _TEXT),
    UniqueConstraint("producer", "batch_number"),
    Index(
        "txns_one_shot",
        "decided_at_ms",
        sqlite_where=IS_ONE_SHOT,
        postgresql_where=IS_ONE_SHOT,
    ),
)
"""The decisions; `subject` owns them, NULL where the server asked for no identities."""

txn_parts: Final = Table(
    "txn_parts",
    COMMON,
    _integer("txn_number", _of("txns.txn_number"), is_key=True),
    _integer("position", is_key=True),
    _text("txn_id"),
    _integer("stream_id", _of(_STREAM)),
    _integer("range_index"),
    _integer("record_count"),
    Index("txn_parts_by_id", "txn_id", "stream_id"),
    Index("txn_parts_by_stream", "stream_id", "txn_number"),
    sqlite_with_rowid=False,
)
"""The parts of decisions that are not published yet."""

given_up_parts: Final = Table(
    "given_up_parts",
    COMMON,
    _integer("txn_number", _of("txns.txn_number"), is_key=True),
    _integer("position", is_key=True),
    _text("txn_id"),
    _integer("stream_id"),
    _integer("range_index"),
    _integer("record_count"),
    _integer("given_up_at_ms"),
    Index("given_up_parts_by_id", "txn_id"),
    sqlite_with_rowid=False,
)
"""The parts of decisions that are lost and were given up."""

aborted_txns: Final = Table(
    "aborted_txns",
    COMMON,
    _text("txn_id", is_key=True),
    Column("producer", _TEXT),
    _integer("aborted_at_ms"),
    Index("aborted_txns_by_time", "aborted_at_ms"),
    sqlite_with_rowid=False,
)

producer_claims: Final = Table(
    "producer_claims",
    COMMON,
    _text("producer", is_key=True),
    _text("subject"),
    _integer("claimed_at_ms"),
    Index("producer_claims_by_time", "claimed_at_ms"),
    sqlite_with_rowid=False,
)
"""Subjects that stage as a producer without a decision, or in a transaction that names none."""

lives: Final = Table(
    "lives",
    COMMON,
    _numbered("life_number"),
    Column("life_id", _TEXT, nullable=False, unique=True),
    _integer("first_commit"),
)
"""Each opening of the store for changes: see `history`."""

last_commit: Final = Table("last_commit", COMMON, _integer("number"), Column("content", _TEXT))
"""One row: the number of the last commit, and in SQLite what all tables hold: see `checksums`."""

restores: Final = Table(
    "restores",
    COMMON,
    _text("backup_id", is_key=True),
    _integer("began_at_ms"),
    Column("completed_at_ms", _INTEGER),
)
"""At most one row: the backup that the cluster was restored from, NULL while it is not complete."""

schema_version: Final = Table("schema_version", SQLITE, _integer("version"))
"""One row, SCHEMA_VERSION: releases that do not know `alembic_version` refuse the file by it."""

leader: Final = Table(
    "leader",
    POSTGRESQL,
    _integer("term"),
    _text("name"),
    _text("address"),
    Column("lease_end", DateTime(timezone=True), nullable=False),
)
"""One row: the placement driver that leads, see `leadership`. The first term is 1."""

placement_drivers: Final = Table(
    "placement_drivers",
    POSTGRESQL,
    _text("address", is_key=True),
    _text("name"),
    Column("seen_at", DateTime(timezone=True), nullable=False),
)
"""The placement drivers of the cluster, and when each announced itself last."""

alembic_version: Final = Table(
    "alembic_version",
    MetaData(),
    Column("version_num", String(32), nullable=False),
    PrimaryKeyConstraint("version_num", name="alembic_version_pkc"),
)
"""One row: the version as text. Alembic's own table, in its form."""


def create_tables(connection: Connection, own: MetaData, last_number: int = 0) -> None:
    """Make the tables of a new cluster, within a transaction of the caller.

    A cluster that moves here has had `last_number` commits elsewhere.
    """
    for metadata in (COMMON, own, alembic_version.metadata):
        metadata.create_all(connection, checkfirst=False)
    connection.execute(insert(alembic_version).values(version_num=str(SCHEMA_VERSION)))
    connection.execute(insert(last_commit).values(number=last_number))
    connection.execute(
        insert(cluster).values(id=str(uuid.uuid4()), revision=0, last_stream_id=0, last_server_id=0)
    )


def check_version(version: object, store: str) -> int:
    """Return the version of the tables of a store. Raises ConfigurationError for unknown ones."""
    if isinstance(version, int) and version in {SCHEMA_VERSION_BEFORE, SCHEMA_VERSION}:
        return version
    is_older = isinstance(version, int) and 0 < version < SCHEMA_VERSION_BEFORE
    remedy = "start release 0.1.0 with it once" if is_older else "use the release that wrote it"
    raise ConfigurationError(
        f"{store} has schema version {version!r}, this release reads {SCHEMA_VERSION_BEFORE} and"
        f" {SCHEMA_VERSION}; {remedy}"
    )


def migrate_tables(connection: Connection) -> None:
    """Bring the tables of an earlier version up to date, within a transaction of the caller."""
    from alembic import command
    from alembic.config import Config

    config = Config()
    config.set_main_option("script_location", "sbp_core.pd.metadata:migrations")
    config.attributes["connection"] = connection
    command.upgrade(config, "head")
