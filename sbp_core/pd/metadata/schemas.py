"""The schemas of streams: table `schemas`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import astuple
from typing import Final

from sqlalchemy import BigInteger, bindparam, insert, select, tuple_

from sbp_core.pd.metadata.database import Database
from sbp_core.pd.metadata.tables import COUNT_MAX, ONE, schemas
from sbp_core.pd.model import SchemaRecord

_SCHEMAS: Final = select(*schemas.columns).where(schemas.c.stream_id == bindparam("stream_id"))
_NEWEST_SCHEMA: Final = _SCHEMAS.order_by(schemas.c.version.desc()).limit(ONE)
_NEXT_SCHEMA: Final = (
    _SCHEMAS.where(schemas.c.version > bindparam("after")).order_by(schemas.c.version).limit(ONE)
)
_ALL_AFTER: Final = (
    select(*schemas.columns)
    .where(
        tuple_(schemas.c.stream_id, schemas.c.version)
        > tuple_(
            bindparam("after_stream", type_=BigInteger()),
            bindparam("after_version", type_=BigInteger()),
        )
    )
    .order_by(schemas.c.stream_id, schemas.c.version)
    .limit(COUNT_MAX)
)
_ADD_SCHEMA: Final = insert(schemas)


class SchemaTable:
    """The versions of the schemas of streams."""

    def __init__(self, database: Database) -> None:
        self._database = database
        self._query = database.query

    def register(self, news: Sequence[SchemaRecord]) -> None:
        """Add versions, all or none; their streams are there, and do not have them yet."""
        with self._database.transaction():
            self._database.add(_ADD_SCHEMA, [astuple(new) for new in news])

    def maybe_newest(self, stream_id: int) -> SchemaRecord | None:
        """Return the last version of a stream's schema; None where it has none."""
        with self._database.reading_blobs():
            rows = self._query(_NEWEST_SCHEMA, stream_id=stream_id)
        return SchemaRecord(*rows[0]) if rows else None

    def maybe_next(self, stream_id: int, version: int) -> SchemaRecord | None:
        """Return the version of a stream's schema that comes after one, 0: the first one."""
        with self._database.reading_blobs():
            rows = self._query(_NEXT_SCHEMA, stream_id=stream_id, after=version)
        return SchemaRecord(*rows[0]) if rows else None

    def after(self, stream_id: int, version: int, count_max: int) -> list[SchemaRecord]:
        """Return up to `count_max` versions of all streams beyond one, by stream and version."""
        with self._database.reading_blobs():
            rows = self._query(
                _ALL_AFTER, after_stream=stream_id, after_version=version, count_max=count_max
            )
        return [SchemaRecord(*row) for row in rows]
