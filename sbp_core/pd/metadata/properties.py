"""The properties of streams: table `stream_properties`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from sqlalchemy import bindparam, delete, select

from sbp_core.pd.metadata.database import Database, Put
from sbp_core.pd.metadata.tables import stream_properties
from sbp_core.pd.model import PropertyMismatch

_ALL: Final = select(*stream_properties.columns).order_by(*stream_properties.primary_key)
_OF_STREAM: Final = _ALL.where(stream_properties.c.stream_id == bindparam("stream_id"))
_PUT: Final = Put(stream_properties)
_DELETE: Final = delete(stream_properties).where(
    *(key == bindparam(key.name, type_=key.type) for key in stream_properties.primary_key)
)


class PropertyTable:
    """The properties of streams, by key; a deleted stream deletes its properties."""

    def __init__(self, database: Database) -> None:
        self._database = database

    def of_stream(self, stream_id: int) -> dict[str, str]:
        """Return the properties of a stream, ordered by key."""
        rows = self._database.query(_OF_STREAM, stream_id=stream_id)
        return {key: value for _, key, value in rows}

    def all(self) -> dict[int, dict[str, str]]:
        """Return the properties of all streams that have some, by stream id."""
        found: dict[int, dict[str, str]] = {}
        for stream_id, key, value in self._database.query(_ALL):
            found.setdefault(stream_id, {})[key] = value
        return found

    def maybe_mismatch(
        self, stream_id: int, expected: Mapping[str, str | None]
    ) -> PropertyMismatch | None:
        """Return the first property that is not as expected; None expects that there is none."""
        present = self.of_stream(stream_id) if expected else {}
        for key, value in expected.items():
            if present.get(key) != value:
                return PropertyMismatch(key, value, present.get(key))
        return None

    def change(self, stream_id: int, changes: Mapping[str, str | None]) -> None:
        """Set properties, or remove those that are None, within a transaction of the caller."""
        for key, value in changes.items():
            if value is None:
                self._database.change(_DELETE, stream_id=stream_id, key=key)
            else:
                self._database.put(_PUT, stream_id=stream_id, key=key, value=value)
