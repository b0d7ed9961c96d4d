"""The schemas of streams: table `schemas`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import astuple
from typing import Final

from sqlalchemy import bindparam, select

from sbp_core.pd.metadata.database import Database
from sbp_core.pd.metadata.tables import ONE, schemas
from sbp_core.pd.model import SchemaRecord

_NEWEST: Final = (
    select(schemas)
    .where(schemas.c.stream_id == bindparam("stream_id"))
    .order_by(schemas.c.version.desc())
    .limit(ONE)
)


class SchemaTable:
    """The versions of the schemas of streams."""

    def __init__(self, database: Database) -> None:
        self._database = database

    def register(self, news: Sequence[SchemaRecord]) -> None:
        """Add versions, all or none; their streams are there, and do not have them yet."""
        with self._database.transaction():
            self._database.add(schemas, map(astuple, news))

    def maybe_newest(self, stream_id: int) -> SchemaRecord | None:
        """Return the last version of a stream's schema; None where it has none."""
        with self._database.reading_blobs():
            rows = self._database.query(_NEWEST, stream_id=stream_id)
        return SchemaRecord(*rows[0]) if rows else None

    def maybe_next(self, stream_id: int, version: int) -> SchemaRecord | None:
        """Return the version of a stream's schema that comes after one, 0: the first one."""
        with self._database.reading_blobs():
            rows = self._database.page(schemas, (version,), 1, stream_id=stream_id)
        return SchemaRecord(*rows[0]) if rows else None

    def all(self) -> list[SchemaRecord]:
        """Return the versions of all streams, by stream and version."""
        with self._database.reading_blobs():
            rows = self._database.rows(schemas)
        return [SchemaRecord(*row) for row in rows]
