"""The versions of the schemas of streams, kept for all tasks of a process."""

from __future__ import annotations

from collections.abc import Collection
from typing import Final

from sbp_core.client import Client, SchemaVersion
from sbp_spark.options.endpoints import Servers

_STREAMS_KEPT: Final = 1_000
KnownVersions = dict[tuple[Servers, int], dict[str, SchemaVersion]]
"""The versions of streams by fingerprint, the oldest first. There may be more; none changes."""
_KNOWN_HERE: Final[KnownVersions] = {}


class SchemaVersions:
    """The versions of the schemas of streams, as the placement driver of `servers` knows them."""

    def __init__(
        self,
        client: Client,
        servers: Servers,
        known: KnownVersions = _KNOWN_HERE,
        streams_max: int = _STREAMS_KEPT,
    ) -> None:
        """Keep what is found in `known`, which the tasks of a process share."""
        self._client = client
        self._servers = servers
        self._known = known
        self._streams_max = streams_max

    def maybe_find(self, stream_id: int, fingerprint: str) -> SchemaVersion | None:
        """Return the version that a record batch names, None if there is none. Raises SbpError."""
        known = self._known.get((self._servers, stream_id), {})
        return known.get(fingerprint) or self._look_up(stream_id).get(fingerprint)

    def find(self, stream_id: int) -> Collection[SchemaVersion]:
        """Return what `known` does, of a stream that was not asked for, too. Raises SbpError."""
        if (self._servers, stream_id) not in self._known:
            self._look_up(stream_id)
        return self.known(stream_id)

    def _look_up(self, stream_id: int) -> dict[str, SchemaVersion]:
        key = self._servers, stream_id
        versions = self._client.describe_schemas([stream_id])[stream_id]
        if key not in self._known and len(self._known) >= self._streams_max:
            self._known.pop(next(iter(self._known)), None)  # another thread may be faster
        found = {version.schema.fingerprint: version for version in versions}
        self._known[key] = found
        return found

    def known(self, stream_id: int) -> Collection[SchemaVersion]:
        """Return the versions that were found when the stream was asked for, the oldest first."""
        return self._known.get((self._servers, stream_id), {}).values()
