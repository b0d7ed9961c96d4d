"""Schemas by the fingerprint that record batches name them by, remembered as long as a process."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, Protocol

from sbp_core.client import SchemaVersion
from sbp_spark.options import Servers

_STREAMS_KEPT: Final = 1_000
_known: Final[dict[tuple[Servers, int], tuple[SchemaVersion, ...]]] = {}
"""The versions that a stream has, or had when it was asked for: a version never changes."""


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
        found = _maybe_of(self.known(stream_id), fingerprint)
        if found is not None:
            return found
        versions = self._client.describe_schemas([stream_id])[stream_id]
        _known.pop((self._servers, stream_id), None)
        while len(_known) >= _STREAMS_KEPT:
            del _known[next(iter(_known))]
        _known[self._servers, stream_id] = versions
        return _maybe_of(versions, fingerprint)

    def known(self, stream_id: int) -> tuple[SchemaVersion, ...]:
        """Return the versions that are known without asking, the oldest first."""
        return _known.get((self._servers, stream_id), ())


def _maybe_of(versions: Sequence[SchemaVersion], fingerprint: str) -> SchemaVersion | None:
    # The newest are named the most often.
    for version in reversed(versions):
        if version.schema.fingerprint == fingerprint:
            return version
    return None
