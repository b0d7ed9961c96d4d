"""Schemas by the fingerprint that record batches name them by, remembered as long as a process."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Final, Protocol

from sbp_core.client import SchemaVersion
from sbp_spark.options import Servers

_STREAMS_KEPT: Final = 1_000
_known: Final[dict[tuple[Servers, int], dict[str, SchemaVersion]]] = {}
"""The versions of streams by fingerprint, the oldest first. There may be more; none changes."""


class _SchemaClient(Protocol):
    def describe_schemas(
        self, stream_ids: Sequence[int], *, newest_only: bool = False
    ) -> dict[int, tuple[SchemaVersion, ...]]:
        """Return the versions of each stream's schema."""
        ...


class SchemaVersions:
    """The versions of the schemas of streams, as the placement driver of `servers` knows them."""

    def __init__(self, client: _SchemaClient, servers: Servers) -> None:
        self._client = client
        self._servers = servers

    def maybe_find(self, stream_id: int, fingerprint: str) -> SchemaVersion | None:
        """Return the version that a record batch names, None if there is none. Raises SbpError."""
        key = self._servers, stream_id
        found = _known.get(key, {}).get(fingerprint)
        if found is not None:
            return found
        versions = self._client.describe_schemas([stream_id])[stream_id]
        if key not in _known and len(_known) >= _STREAMS_KEPT:
            del _known[next(iter(_known))]
        _known[key] = {version.schema.fingerprint: version for version in versions}
        return _known[key].get(fingerprint)

    def known(self, stream_id: int) -> Collection[SchemaVersion]:
        """Return the versions that were found when the stream was asked for, the oldest first."""
        return _known.get((self._servers, stream_id), {}).values()
