"""The streams that a source reads: which ones, and where in them a query starts and ends."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager

from sbp_core.client import Client, StreamBounds, StreamInfo
from sbp_core.errors import (
    ConfigurationError,
    ConnectError,
    DeadlineExceededError,
    NotFoundError,
    SbpError,
    TransportError,
)
from sbp_spark.client_pool import Patience, client_for
from sbp_spark.options import (
    AtCursor,
    OnDataLoss,
    Servers,
    SourceOptions,
    StreamList,
    StreamPattern,
    StreamRef,
)
from sbp_spark.reading.lookups import find_offsets
from sbp_spark.reading.positions import (
    check_inside,
    check_positions,
    positions_of,
)
from sbp_spark.reading.stream_kinds import StreamKinds, maybe_kinds


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
