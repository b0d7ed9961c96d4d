"""Clients and servers that answer as a test says, in memory."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace

import pytest
from hypothesis import strategies as st

from sbp_core.client import AppendItem, SchemaVersion, StreamBounds, StreamInfo, TxnDecision
from sbp_core.client.operations import append_state
from sbp_core.client.operations.appending import AsyncAppender
from sbp_core.client.operations.open_calls import Arrival
from sbp_core.errors import (
    AlreadyExistsError,
    NotFoundError,
    StatusCode,
    TxnAbortedError,
    TxnEndedError,
    UnsupportedError,
)
from sbp_core.records import (
    decode_batch,
    decode_columns,
    decode_envelope,
    encoding_of,
    merge_schemas,
)
from sbp_spark.options.endpoints import Servers
from sbp_spark.options.sink import SinkOptions
from sbp_spark.options.sink_targets import Targets
from sbp_spark.options.stream_selection import StreamRef

SERVERS = Servers(("pd:1",))
STREAM_COUNT = 100


def sink_options(*streams, **changes):
    """Options of a sink that writes to these streams, or where the rows say."""
    refs = tuple(StreamRef(str(stream)) for stream in streams)
    routing = {"routing": changes.pop("routing")} if "routing" in changes else {}
    return replace(SinkOptions(SERVERS, Targets(refs, **routing)), **changes)


@dataclass
class Range:
    """A range of a stream: published rows, and staged ones by transaction."""

    rows: list
    staged: dict


class Appender:
    """Appends at once."""

    def __init__(self, client, kind):
        self.unacknowledged = []
        self._client = client
        self._kind = kind
        self._is_over = False

    def append(self, items):
        assert not self._is_over
        self.unacknowledged += items
        self._client.append(items, **self._kind)
        self.unacknowledged.clear()

    def finish(self):
        self._is_over = True

    def close(self):
        self._is_over = True


class WritingClient:
    """Has the streams s0 ... s99 with the ids 0 ... 99; `appends` are the calls."""

    def __init__(
        self,
        *,
        has_transactions=True,
        has_writers=True,
        has_schemas=True,
    ):
        self.has_writers = has_writers
        self._has_schemas = has_schemas
        self.names = {f"s{number}": number for number in range(STREAM_COUNT)}
        self.published = {}
        self.staged = {}
        self.appends = []
        self.described = []
        self.created = []
        self.trims = []
        self.schemas = {}
        self.asked_for_schemas = []
        self.record_sizes = {}
        self.asked_sizes = []
        self.decisions = {}
        self.aborted = set()
        self.ended = set()
        self.is_published = True
        self._has_transactions = has_transactions

    def record_bytes_max(self, stream_ids):
        self.asked_sizes.append(sorted(stream_ids))
        return {each: self.record_sizes.get(each, 8 << 20) for each in stream_ids}

    def describe_streams(self, refs):
        self.described.append(list(refs))
        known = set(self.names.values())
        missing = [ref for ref in refs if self.names.get(ref, ref) not in known]
        if missing:
            raise NotFoundError(StatusCode.NOT_FOUND, f"not found: {missing}")
        return [self._info(str(ref), self.names.get(ref, ref)) for ref in refs]

    def find_streams(self, refs):
        self.described.append(list(refs))
        return [
            self._info(name, stream_id)
            for name, stream_id in self.names.items()
            if {name, stream_id} & {*refs}
        ]

    def list_streams(self):
        return [self._info(name, stream_id) for name, stream_id in self.names.items()]

    def create_streams(self, specs):
        for spec in specs:
            self.created.append(spec)
            if spec.name in self.names:
                raise AlreadyExistsError(StatusCode.CONFLICT, "taken")
            self.names[spec.name] = len(self.names)
        return [self._info(spec.name, self.names[spec.name]) for spec in specs]

    def explain_missing(self, replica_count):
        del replica_count

    def append(self, items, *, retry_unknown=False, writer=None, transaction=None):
        assert (writer is not None) + (transaction is not None) + retry_unknown == 1
        if writer is not None and not self.has_writers:
            raise UnsupportedError(StatusCode.UNSUPPORTED_OPERATION, "writers declined")
        self.appends.append(list(items))
        if transaction is None:
            for item in items:
                self.published.setdefault(item.stream_id, []).extend(self._rows_in(item))
        elif not self._has_transactions:
            raise UnsupportedError(StatusCode.UNSUPPORTED_OPERATION, "transactions declined")
        else:
            for item in items:
                transaction._staged.use(item.stream_id)
                if transaction.txn_id in self.ended:
                    transaction._staged.number((item.stream_id, 0))
                    transaction._staged.has_failed = True
                    raise TxnEndedError(StatusCode.TXN_ENDED, "dropped")
                self._stage(item, transaction)

    def appender(self, **kind):
        return Appender(self, kind)

    def _stage(self, item, transaction):
        key = (item.stream_id, 0)
        transaction._staged.number(key)
        transaction._staged.on_staged(key, len(self._rows_in(item)))
        self.staged.setdefault((transaction.txn_id, *key), []).extend(self._rows_in(item))

    def commit_txn(self, producer, batch_number, parts, *, record_count, digest, timeout_ms=None):
        known = self.decisions.setdefault(producer, {})
        if batch_number in known:
            return replace(known[batch_number], is_replay=True, is_published=self.is_published)
        if any(part.txn_id in self.aborted for part in parts):
            raise TxnAbortedError(StatusCode.TXN_ABORTED, "given up")
        assert sum(part.record_count for part in parts) == record_count
        decision = TxnDecision(False, self.is_published, record_count, digest)
        known[batch_number] = decision
        for part in parts:
            rows = self.staged.pop((part.txn_id, part.stream_id, part.range_index))
            assert len(rows) == part.record_count
            self.published.setdefault(part.stream_id, []).extend(rows)
        return decision

    def abort_txns(self, parts):
        dead = [
            part for part in parts if (part.txn_id, part.stream_id, part.range_index) in self.staged
        ]
        for part in dead:
            del self.staged[part.txn_id, part.stream_id, part.range_index]
            self.aborted.add(part.txn_id)
        return dead

    def drop_all(self):
        """Drop what is staged, as a sweep does with what is dead."""
        self.ended |= {txn_id for txn_id, *_ in self.staged}
        self.staged.clear()

    def stream_bounds(self, stream_ids):
        return [StreamBounds(each, 0, len(self.published.get(each, []))) for each in stream_ids]

    def describe_schemas(self, stream_ids, *, newest_only=False):
        if not self._has_schemas:
            raise UnsupportedError(StatusCode.UNSUPPORTED_OPERATION, "schemas declined")
        self.asked_for_schemas.append(list(stream_ids))
        first = -1 if newest_only else 0
        return {each: tuple(self.schemas.get(each, [])[first:]) for each in stream_ids}

    def register_schema(self, stream_id, schema, *, version):
        versions = self.schemas.setdefault(stream_id, [])
        if version == len(versions) + 1:
            versions.append(SchemaVersion(stream_id, version, schema, 0))
        return versions[-1]

    def evolve_schema(self, stream_id, schema, *, may_change):
        assert may_change
        newest = self.schemas[stream_id][-1]
        merged = merge_schemas(newest.schema, schema)
        if merged == newest.schema:
            return newest
        return self.register_schema(stream_id, merged, version=newest.version + 1)

    def trim_streams(self, offsets):
        self.trims.append(dict(offsets))

    def values(self):
        """Values that are readable, by stream id."""
        return {
            stream_id: [row["value"] for row in rows] for stream_id, rows in self.published.items()
        }

    def staged_values(self):
        """Values that are staged, by stream id, whatever their transaction is."""
        found = {}
        for (_, stream_id, _), rows in self.staged.items():
            found.setdefault(stream_id, []).extend(row["value"] for row in rows)
        return found

    @staticmethod
    def _info(name, stream_id):
        return StreamInfo(stream_id, name, 1, 0, 0)

    def _rows_in(self, item):
        """Return the rows of a batch to append."""
        envelope = decode_envelope(item.batch)
        assert envelope.stream_id == item.stream_id
        if not encoding_of(envelope).is_typed:
            return decode_batch(envelope).to_pylist()
        schemas = {each.schema.fingerprint: each.schema for each in self.schemas[item.stream_id]}
        return decode_columns(envelope, schemas[envelope.schema_fingerprint]).to_pylist()


FRAME_ITEMS_MAX = 2


@contextmanager
def small_frames() -> Iterator[None]:
    """Make frames so small that a stream's batches do not fit into one."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(append_state, "_ITEMS_MAX", FRAME_ITEMS_MAX)
        yield


def at_once(work):
    """Return the result of a coroutine that never waits."""
    try:
        work.send(None)
    except StopIteration as stop:
        return stop.value
    raise AssertionError("it waits")


class AppendWorld:
    """Answers each call at once, or later: then others that were sent after it may come first.

    Without `draw` at once, and in order. `reply` gets every call, in the order in which servers see
    them, and returns a frame or an error. It is the `Calls` of all operations, one at a time.
    """

    def __init__(self, draw, *, caller_takes_ms: float = 0) -> None:
        self._draw = draw
        self._caller_takes_ms = caller_takes_ms
        self._now_ms = 0.0
        self._count = 0
        self._held: dict[int, object] = {}
        self._arrivals: dict[int, Arrival] = {}

    def reply(self, call):
        raise NotImplementedError

    def run(self, work):
        """Run an operation to its end."""
        return at_once(work)

    def append(self, appender: AsyncAppender, groups: Iterable[Sequence[AppendItem]]) -> None:
        """Give an appender the groups, and finish it."""
        for group in groups:
            at_once(appender.append(group))
            self._now_ms += self._caller_takes_ms
        at_once(appender.finish())

    def open_calls(self):
        return self

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self._held.clear()
        self._arrivals.clear()

    def now_ms(self):
        return self._now_ms

    async def start(self, call) -> int:
        number = self._count
        self._count += 1
        self._held[number] = call
        if self._draw is None or self._draw(st.booleans()):
            self._serve(number)
        return number

    def abandon(self, number):
        self._held.pop(number, None)
        self._arrivals.pop(number, None)

    async def receive(self, numbers, until_ms=None):
        if not numbers:
            self._now_ms = until_ms
            return None
        number = min(numbers)
        if self._draw is not None:
            number = self._draw(st.sampled_from(sorted(numbers)))
        if number in self._held:
            self._serve(number)
        return self._arrivals.pop(number)

    def _serve(self, number: int) -> None:
        self._arrivals[number] = Arrival(number, self.reply(self._held.pop(number)))
