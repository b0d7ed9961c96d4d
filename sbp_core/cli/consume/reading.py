"""Reading the planned parts of streams, and committing how far a group has come."""

from __future__ import annotations

from collections.abc import Generator

from sbp_core.app.aio.assignment import AsyncWholeSelection
from sbp_core.app.aio.consumer import AsyncConsumer
from sbp_core.app.blocking import Consumer, RecordIterator
from sbp_core.app.record import Batch
from sbp_core.cli.connect import parse_stream
from sbp_core.cli.consume.spans import Plan, Wanted, make_plan, rest_of
from sbp_core.cli.output import flush, write_notice
from sbp_core.client import Client
from sbp_core.errors import ConfigurationError, DamagedBatchError, RecordBatchError
from sbp_core.operating.stream_position import check_order


class Reading:
    """Reads what is wanted, and commits for the group while it does.

    With `commits_at_end` nothing is committed before `commit`: what was read may be discarded.
    """

    def __init__(self, client: Client, wanted: Wanted, *, commits_at_end: bool) -> None:
        self._client = client
        self._wanted = wanted
        self._group = None if commits_at_end else wanted.group
        self._written: dict[str, int] = {}
        self._consumers: list[Consumer] = []
        self.plan: Plan
        """The streams and their parts; it is there with the first batch."""

    def batches(self) -> Generator[Batch]:
        """Yield the batches, each done when the next one is asked for. Raises SbpError."""
        plan = self.plan = make_plan(self._client, self._wanted)
        yield from self._read(plan)
        if plan.open_ended and not self._wanted.is_following:
            flush()
            for stream_id in sorted(plan.open_ended):
                span = plan.spans[stream_id]
                write_notice(
                    f"the end of stream {stream_id} from offset"
                    f" {max(span.start_offset, span.end_offset or 0)} on is unavailable: waiting"
                    " for it"
                )
            yield from self._read(rest_of(self._client, plan))

    def on_written(self, stream: str, offset: int) -> None:
        """Note that the records of a stream before an offset are written."""
        self._written[stream] = offset

    def stop_at(self, stream: str, offset: int) -> None:
        """Let the records before an offset be the last ones of the batch that are done."""
        self._consumers[-1].seek(stream, offset)

    def finish(self) -> None:
        """Commit what is written, unless that is left to `commit`, or was done at the end."""
        if self._group is not None and self._consumers:
            try:
                for stream, offset in self._written.items():
                    self._consumers[-1].seek(stream, offset)
                self._consumers[-1].commit()
            except ConfigurationError:  # the interrupt has closed it, perhaps before all was done
                self.commit()

    def commit(self) -> None:
        """Commit for the group what is written. Raises SbpError."""
        if self._wanted.group is None or not self._written:
            return
        streams = self._client.describe_streams([parse_stream(each) for each in self._written])
        offsets = {each.stream_id: self._written[each.label] for each in streams}
        self._client.commit_cursors(self._wanted.group, offsets)

    def _read(self, plan: Plan) -> Generator[Batch]:
        client = self._client.on_loop
        consumer = Consumer(
            AsyncConsumer(
                client,
                plan.selection,
                spans=plan.spans,
                follow=self._wanted.is_following,
                assignment=AsyncWholeSelection(client, self._group),
                group=self._wanted.group,
                hand=RecordIterator,
            )
        )
        self._consumers.append(consumer)
        with consumer:
            try:
                yield from consumer.batches()
            except DamagedBatchError as error:
                raise RecordBatchError(
                    f"{error}; --from {error.end_offset} continues after them"
                ) from error


def check_wanted(wanted: Wanted) -> None:
    """Raise ConfigurationError for a part that has no records, or that a group cannot have read."""
    if wanted.end is not None:
        check_order(wanted.start, wanted.end)
    if wanted.group is not None and (wanted.last is not None or wanted.end is not None):
        raise ConfigurationError(
            "--group reads on to the tail from where the group is: leave --last and --to out"
        )
