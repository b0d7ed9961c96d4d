"""`sbp streams copy`: copy the records of a stream into another one."""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from typing import TYPE_CHECKING, Final

import click

from sbp_core import limits
from sbp_core.cli.commands import Command
from sbp_core.cli.connect import STREAM, checked_new_name, connect, find_reach, find_stream, titled
from sbp_core.cli.options import (
    POSITION,
    ClientOptions,
    check_interval,
    client_options,
    retry_option,
)
from sbp_core.cli.output import write_notice, write_result
from sbp_core.cli.progress import progress
from sbp_core.errors import (
    AlreadyExistsError,
    ConfigurationError,
    DeadlineExceededError,
    SbpError,
    SchemaError,
)
from sbp_core.operating.stream_position import Position, PositionKind, check_order, find_offset
from sbp_core.wording import counted

if TYPE_CHECKING:
    from sbp_core.app.blocking import Committer
    from sbp_core.client import Client, Reach, StreamInfo
    from sbp_core.records import StreamSchema

_COMMIT_BYTES: Final = 4 * limits.MIB
"""How much is committed at a time; the batches of a commit are kept in memory."""
_WAIT_MS: Final = 10_000


@click.command(cls=Command, example="sbp streams copy orders orders-2 --create")
@click.argument("source", type=STREAM, metavar="FROM")
@click.argument("target", type=STREAM, metavar="TO")
@click.option(
    "--from",
    "start",
    type=POSITION,
    default="earliest",
    help="First record, for the first call. [default: earliest]",
)
@click.option(
    "--to",
    "end",
    type=POSITION,
    default="latest",
    help="End before this record. [default: latest]",
)
@click.option("--create", is_flag=True, help="Create TO, as FROM is, unless it exists.")
@click.option(
    "--id",
    "copy_id",
    metavar="NAME",
    help="Name of the copy, under which the cluster counts how far it is. [default: copy.ID of"
    " FROM]",
)
@retry_option
@client_options
def copy(
    options: ClientOptions,
    source: str,
    target: str,
    start: Position,
    end: Position,
    *,
    create: bool,
    copy_id: str | None,
    retry_for: float,
) -> int:
    """Copy the records of stream FROM to the end of stream TO, each once.

    Keys, values, headers, timestamps and columns are as they were; offsets are those of TO. If the
    command is called again it continues where it was, also if it was killed.

    A POSITION is earliest, latest, an offset, -N (N records before the tail), a time of append such
    as 2025-01-31T09:30 (UTC), or one before now: -90s, -10m, -12h, -7d.
    """
    from sbp_core.app.blocking import Committer

    check_order(start, end)
    with connect(options, retry_for) as client:
        info = find_stream(client, source)
        if create:
            _create(client, info, target)
        into = find_stream(client, target)
        if into.stream_id == info.stream_id:
            raise ConfigurationError(f"{titled(info)} cannot be copied into itself")
        first, last = _interval(client, info, start, end)
        schemas = _share_schemas(client, info, into)  # those of all records before `last`
        committer = Committer(client, copy_id or f"copy.{info.stream_id}", into.stream_id)
        committer.begin()
        # The position of this producer is an offset of the source: that is where it goes on.
        begun_at = committer.position = max(committer.position, first)
        copying = _Copying(client, info, into, committer, schemas)
        try:
            copying.run(last)
        except SbpError as error:
            error.add_note(_remark(committer.position - begun_at))
            raise
        except KeyboardInterrupt:
            write_notice(_remark(committer.position - begun_at))
            raise
    count = committer.position - begun_at
    value = {
        "from": info.label,
        "to": into.label,
        "records": count,
        "start_offset": begun_at,
        "end_offset": committer.position,
    }
    text = f"{counted(count, 'record')} copied from {titled(info)} to {titled(into)}"
    if begun_at > first:
        text += f"; those before offset {begun_at} were copied earlier"
    write_result(value, text, is_json=options.json)
    return 0


def _remark(count: int) -> str:
    return f"{counted(count, 'record')} copied; the same call continues behind them"


class _Copying:
    """Copies record batches, some MiB in a commit."""

    def __init__(
        self,
        client: Client,
        source: StreamInfo,
        target: StreamInfo,
        committer: Committer,
        schemas: Sequence[StreamSchema],
    ) -> None:
        self._client = client
        self._source = source
        self._target = target
        self._committer = committer
        self._schemas = schemas

    def run(self, end: int) -> None:
        """Copy the records up to `end`, exclusive. Shows how far it is on a terminal."""
        begun_at = self._committer.position
        with progress("records") as report:
            while (position := self._committer.position) < end:
                report(position - begun_at, end - begun_at, "")
                self._copy_some(end)

    def _copy_some(self, end: int) -> None:
        from sbp_core.client import FetchItem
        from sbp_core.operating.batch_copies import copied_batches

        start = self._committer.position
        item = FetchItem(self._source.stream_id, start, end, _COMMIT_BYTES)
        (outcome,) = self._client.fetch([item], max_wait_ms=_WAIT_MS)
        if outcome.error is not None:
            raise outcome.error
        if not outcome.payload:
            raise DeadlineExceededError(
                f"no records at offset {start} within {_WAIT_MS} ms, although the stream ended at"
                f" {end}; try again, then run `sbp log check` on its range server"
            )
        batches, count = copied_batches(
            outcome.payload, self._target.stream_id, start, end, self._schemas
        )
        self._committer.commit(batches, count)


def _create(client: Client, info: StreamInfo, name: str) -> None:
    """Create a stream that keeps records as another one does, unless it is there."""
    from sbp_core.client import StreamSpec

    spec = StreamSpec(
        checked_new_name(name),
        replica_count=info.replica_count,
        retention_period_ms=info.retention_period_ms,
        retention_bytes=info.retention_bytes,
        ack_count=info.ack_count,
    )
    with contextlib.suppress(AlreadyExistsError):
        client.create_streams([spec])


def _share_schemas(client: Client, source: StreamInfo, target: StreamInfo) -> list[StreamSchema]:
    """Return the schemas of the source, once all are versions of the target's, too."""
    ids = [source.stream_id, target.stream_id]
    known = client.describe_schemas(ids)
    wanted = [each.schema for each in known[source.stream_id]]
    if not wanted and known[target.stream_id]:
        raise SchemaError(
            f"{titled(source)} has no schema and {titled(target)} has one: copy it into a stream"
            " without schema"
        )
    if wanted and not known[target.stream_id] and _has_records(client, target):
        raise SchemaError(
            f"{titled(source)} has a schema and {titled(target)} has records without one: copy it"
            " into a new stream, with --create"
        )
    names = [each.fingerprint for each in wanted]
    there = [each.schema.fingerprint for each in known[target.stream_id]]
    if there != names[: len(there)] and not set(names) <= set(there):
        raise SchemaError(
            f"{titled(target)} has another schema than {titled(source)}: copy it into a new"
            " stream, with --create"
        )
    for version in range(len(there), len(wanted)):
        client.register_schema(target.stream_id, wanted[version], version=version + 1)
    return wanted


def _has_records(client: Client, info: StreamInfo) -> bool:
    (bounds,) = client.stream_bounds([info.stream_id])
    return bounds.next_offset > bounds.start_offset


def _interval(client: Client, info: StreamInfo, start: Position, end: Position) -> tuple[int, int]:
    """Return the first offset to copy, and that behind the last. Raises SbpError."""
    at = find_reach(client, [info.stream_id])[info.stream_id]
    first, last = _offset(client, at, start), _offset(client, at, end)
    check_interval(first, last)
    return first, last


def _offset(client: Client, at: Reach, position: Position) -> int:
    found = None
    if position.kind is PositionKind.TIME:
        found = client.lookup_offsets({at.stream_id: position.number})[at.stream_id]
    return find_offset(position, at, found)
