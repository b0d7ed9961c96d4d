"""The streams that a source reads: which ones, and where in them a query starts and ends."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager

from sbp_core.client import Client, SchemaVersion, StreamBounds, StreamInfo
from sbp_core.errors import (
    ConfigurationError,
    ConnectError,
    DeadlineExceededError,
    NotFoundError,
    SbpError,
    TransportError,
    UnsupportedError,
)
from sbp_spark.client_pool import Patience, client_for
from sbp_spark.options import (
    AtCursor,
    OnDataLoss,
    Servers,
    SourceEncoding,
    SourceOptions,
    StreamList,
    StreamPattern,
    StreamRef,
)
from sbp_spark.reading.locating import (
    check_inside,
    check_positions,
    find_offsets,
    positions_of,
)


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


@contextmanager
def plain_errors() -> Iterator[None]:
    """Raise SbpErrors without what led to them: Spark prints the whole chain to the user."""
    try:
        yield
    except SbpError as error:
        raise error.with_traceback(None) from None


@contextmanager
def first_contact(servers: Servers) -> Iterator[Client]:
    """Give a client of little patience; if nobody answers, ConnectError says what to look at."""
    try:
        yield client_for(servers, Patience.STARTING)
    except (TransportError, DeadlineExceededError) as error:
        raise ConnectError(
            f"option endpoint: no placement driver answers at {servers}; is `sbp serve` running"
            f" there? ({error.__cause__ or error})"
        ) from None


def describe_refs(servers: Servers, refs: Sequence[StreamRef], option: str) -> list[StreamInfo]:
    """Return the streams that an option names, asking the placement driver for the first time.

    Raises NotFoundError naming all that are missing, ConnectError when nobody answers.
    """
    with first_contact(servers) as client:
        if not refs:
            client.ping()
            return []
        try:
            return client.describe_streams(wanted(refs))
        except NotFoundError as error:
            raise NotFoundError(
                error.code,
                f"option {option}: {error.message}; on the command line:"
                f" `sbp streams create NAME --endpoint {servers}` and"
                f" `sbp streams list --endpoint {servers}`; a stream that was renamed has its new"
                " name, or its id",
            ) from None


def existing_streams(client: Client, refs: Collection[int | str]) -> dict[int, StreamInfo]:
    """Return, by id, those of the streams named by id or name that exist. Raises SbpError."""
    try:
        infos = client.describe_streams(list(refs))
    except NotFoundError:
        infos = [each for each in client.list_streams() if {each.stream_id, each.name} & {*refs}]
    return {info.stream_id: info for info in infos}


def wanted(refs: Sequence[StreamRef]) -> list[int | str]:
    """Return how a client takes references: ids as numbers."""
    return [ref.text if ref.maybe_id is None else ref.maybe_id for ref in refs]


def select_streams(options: SourceOptions) -> Mapping[int, StreamInfo]:
    """Return the streams that are to be read, by id, asking for the first time.

    Raises SbpError when nobody answers, when any that is named is missing or named twice, or when
    positions are given for others.
    """
    selection = options.selection
    if isinstance(selection, StreamPattern):
        with first_contact(options.servers) as client:
            return select_matching(client, selection, maybe_kinds(options))
    infos = describe_refs(options.servers, selection.refs, selection.option)
    _check_distinct(selection, infos)
    check_option_positions(options, infos)
    return {info.stream_id: info for info in infos}


def select_matching(
    client: Client, pattern: StreamPattern, kinds: StreamKinds | None
) -> Mapping[int, StreamInfo]:
    """Return the streams that match, and are of the kind if only one is wanted. Raises SbpError."""
    matching = {
        info.stream_id: info for info in client.list_streams() if pattern.matches(info.name)
    }
    return matching if kinds is None else kinds.select(client, matching)


def _check_distinct(selection: StreamList, infos: Sequence[StreamInfo]) -> None:
    seen: dict[int, StreamRef] = {}
    faults = []
    for ref, info in zip(selection.refs, infos, strict=True):
        if info.stream_id in seen:
            faults.append(f"{seen[info.stream_id]} and {ref} (id {info.stream_id})")
        seen.setdefault(info.stream_id, ref)
    if faults:
        raise ConfigurationError(
            f"option {selection.option}: these are one and the same stream: {'; '.join(faults)};"
            " name each stream once"
        )


def check_option_positions(options: SourceOptions, infos: Collection[StreamInfo]) -> None:
    """Raise ConfigurationError where JSON in the options does not name exactly the streams."""
    check_positions(options.starting, infos)
    if options.ending is not None:
        check_positions(options.ending, infos)


def starting_offsets(
    client: Client,
    options: SourceOptions,
    bounds: Mapping[int, StreamBounds],
    streams: Mapping[int, StreamInfo],
    *,
    late_since_ms: Mapping[int, int] | None = None,
    timeout_ms: int | None = None,
) -> dict[int, int]:
    """Return the first offset to read of each stream of `bounds`, which are some of `streams`.

    One that was trimmed is returned if that is not to fail, or is for others to judge: a cursor is
    where records were to be read. `late_since_ms` is since when a query that runs has waited for
    the streams, by id; others may have come and gone. With a `timeout_ms` those that start at a
    time which their servers do not find in it are left out. Raises SbpError.
    """
    if late_since_ms is None:
        check_option_positions(options, streams.values())
    starts = find_offsets(
        client,
        options.starting,
        bounds,
        streams,
        late_since_ms=late_since_ms,
        timeout_ms=timeout_ms,
    )
    is_loss_allowed = options.on_data_loss is not OnDataLoss.FAIL
    trimmed_allowed = [
        stream_id
        for stream_id, position in positions_of(options.starting, streams.values()).items()
        if is_loss_allowed or isinstance(position, AtCursor)
    ]
    check_inside(options.starting.option, starts, bounds, streams, trimmed_allowed=trimmed_allowed)
    return starts


def ending_offsets(
    client: Client,
    options: SourceOptions,
    bounds: Mapping[int, StreamBounds],
    streams: Mapping[int, StreamInfo],
) -> dict[int, int]:
    """Return where a batch ends in each stream. Raises SbpError."""
    if options.ending is None:
        return {stream_id: bound.next_offset for stream_id, bound in bounds.items()}
    ends = find_offsets(client, options.ending, bounds, streams)
    check_inside(options.ending.option, ends, bounds, streams)
    return ends
