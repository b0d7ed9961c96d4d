"""The versions of the schemas of streams, kept for all tasks of a process."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from typing import Final

from sbp_core.client import Client, SchemaVersion
from sbp_spark.options.endpoints import Servers

_STREAMS_KEPT: Final = 20_000
"""More than a query reads as a rule: tasks of another micro-batch find all of theirs again."""
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
        """Keep the versions in `known`, which the tasks of a process share."""
        self._client = client
        self._servers = servers
        self._known = known
        self._streams_max = streams_max
        self._prepared: dict[int, dict[str, SchemaVersion]] = {}
        """The versions of the task's own streams, which no other task can push out."""

    def maybe_find(self, stream_id: int, fingerprint: str) -> SchemaVersion | None:
        """Return the version that a record batch names, None if there is none. Raises SbpError."""
        known = (self._maybe_versions(stream_id) or {}).get(fingerprint)
        return known or self._look_up([stream_id])[stream_id].get(fingerprint)

    def find(self, stream_id: int) -> Collection[SchemaVersion]:
        """Return the versions of a stream, the oldest first; ask for them once. Raises SbpError."""
        if self._maybe_versions(stream_id) is None:
            self._look_up([stream_id])
        return self.known(stream_id)

    def prepare(self, stream_ids: Iterable[int]) -> None:
        """Find the versions of many streams that are not known yet in one go. Raises SbpError."""
        wanted = {each: self._known.get((self._servers, each)) for each in stream_ids}
        self._prepared = {each: found for each, found in wanted.items() if found is not None}
        if unknown := wanted.keys() - self._prepared.keys():
            self._prepared |= self._look_up(sorted(unknown))

    def _look_up(self, stream_ids: list[int]) -> dict[int, dict[str, SchemaVersion]]:
        found = {
            stream_id: {version.schema.fingerprint: version for version in versions}
            for stream_id, versions in self._client.describe_schemas(stream_ids).items()
        }
        for stream_id, versions in found.items():
            key = self._servers, stream_id
            if key not in self._known and len(self._known) >= self._streams_max:
                self._known.pop(next(iter(self._known)), None)  # another thread may be faster
            self._known[key] = versions
        self._prepared |= {each: found[each] for each in found.keys() & self._prepared.keys()}
        return found

    def known(self, stream_id: int) -> Collection[SchemaVersion]:
        """Return the versions that were found when the stream was asked for, the oldest first."""
        return (self._maybe_versions(stream_id) or {}).values()

    def _maybe_versions(self, stream_id: int) -> dict[str, SchemaVersion] | None:
        return self._known.get((self._servers, stream_id), self._prepared.get(stream_id))
