"""Which streams have a schema, and so which of those that match a pattern a query reads."""

from __future__ import annotations

from collections.abc import Collection, Mapping

from sbp_core.client import Client, SchemaVersion, StreamInfo
from sbp_core.errors import NotFoundError, UnsupportedError
from sbp_spark.options import SourceEncoding, SourceOptions, StreamPattern


def newest_schemas(
    client: Client, stream_ids: Collection[int], *, is_required: bool
) -> dict[int, SchemaVersion]:
    """Return the newest schema of each stream that has one, by id.

    A placement driver that knows no schemas has none, unless they are required. Raises SbpError.
    """
    if not stream_ids:
        return {}
    try:
        found = client.describe_schemas(list(stream_ids), newest_only=True)
    except UnsupportedError:
        if is_required:
            raise
        return {}
    except NotFoundError:  # deleted since it was selected; whoever reads it says so
        there = [each.stream_id for each in client.list_streams() if each.stream_id in stream_ids]
        found = client.describe_schemas(there, newest_only=True)
    return {stream_id: versions[-1] for stream_id, versions in found.items() if versions}


class StreamKinds:
    """Selects, of streams that match, those of one kind: with a schema, or without.

    A stream without a schema may get one as long as it has no records. It never loses it again, so
    it is asked for only until then.
    """

    def __init__(self, *, is_typed_wanted: bool) -> None:
        self.is_typed_wanted = is_typed_wanted
        self._typed: set[int] = set()
        self._matching: Mapping[int, StreamInfo] = {}
        self._selected: Mapping[int, StreamInfo] = {}

    @property
    def is_open(self) -> bool:
        """Whether streams that match may come to be selected by getting a schema."""
        return self.is_typed_wanted and len(self._selected) < len(self._matching)

    def select(
        self, client: Client, matching: Mapping[int, StreamInfo]
    ) -> Mapping[int, StreamInfo]:
        """Return which of the streams are of the kind now. Raises SbpError."""
        self._matching = matching
        return self.select_again(client)

    def select_again(self, client: Client) -> Mapping[int, StreamInfo]:
        """Return which of the same streams are; the same object if nothing has changed."""
        typed = self.find_typed(client, self._matching)
        selected = {
            stream_id: info
            for stream_id, info in self._matching.items()
            if (stream_id in typed) == self.is_typed_wanted
        }
        if selected != self._selected:
            self._selected = selected
        return self._selected

    def find_typed(self, client: Client, stream_ids: Collection[int]) -> Collection[int]:
        """Return the streams, these and others, that are known to have a schema now."""
        unknown = [each for each in stream_ids if each not in self._typed]
        found = newest_schemas(client, unknown, is_required=self.is_typed_wanted)
        self._typed.update(found)
        return self._typed


def maybe_kinds(options: SourceOptions) -> StreamKinds | None:
    """Return what selects streams by their kind: for a pattern beside an encoding of its own."""
    encoding = options.contents.encoding
    if not isinstance(options.selection, StreamPattern) or encoding is SourceEncoding.AUTO:
        return None
    return StreamKinds(is_typed_wanted=encoding is SourceEncoding.COLUMNS)
