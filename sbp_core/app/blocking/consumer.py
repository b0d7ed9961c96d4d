"""Reading records.

Generated from ../aio/consumer.py: do not edit. Change that one, and run `make client`.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from contextlib import closing, suppress
from datetime import datetime
from typing import Self

from sbp_core.app import defaults
from sbp_core.app.blocking.assignment import Assignment
from sbp_core.app.decoding import (
    decode_fetched,
    fingerprints_of,
    records_of,
    split_fetched,
)
from sbp_core.app.positions import NO_SPANS, Position, Positions, Span, Start
from sbp_core.app.process import OfProcess, use_here
from sbp_core.app.record import Batch, Record, timestamp_us_of
from sbp_core.app.selection import Selection
from sbp_core.client import Client, FetchOutcome, StreamInfo
from sbp_core.errors import (
    ConfigurationError,
    DeadlineExceededError,
    MemberUnknownError,
    OffsetOutOfRangeError,
)
from sbp_core.records import StreamSchema


class Consumer(OfProcess):
    """Reads streams, record by record or in batches. Made by `Connection.consumer`.

    For one thread. Records of a stream come in the order of their offsets, each once. With a group
    the consumer begins where the group's cursors are, and commits how far it has come: every
    `commit_interval_ms` and at the end, or, if that is None, when `commit` is called. Records that
    were not committed when a process was killed are read again: at least once.

    In a stream of `spans`, by id, it reads that part only, wherever the cursor of a group is.

    Consumers that share a group divide its streams: each stream is read by one of them at a time.
    One that works on a record for longer than the session timeout of the group loses its streams.
    """

    def __init__(
        self,
        client: Client,
        streams: Sequence[str] | Selection,
        *,
        start: Start = "earliest",
        spans: Mapping[int, Span] = NO_SPANS,
        follow: bool = False,
        commit_interval_ms: int | None = defaults.COMMIT_INTERVAL_MS,
        refresh_interval_ms: int = defaults.REFRESH_INTERVAL_MS,
        fetch_bytes: int = defaults.FETCH_BYTES,
        assignment: Assignment,
        on_close: Callable[[Consumer], None] | None = None,
    ) -> None:
        self._client = client
        self._selection = streams if isinstance(streams, Selection) else Selection.of(streams)
        self._assignment = assignment
        self._start = start
        self._spans = spans
        self._is_following = follow
        self._commit_seconds = commit_interval_ms and commit_interval_ms / 1000
        self._refresh_seconds = refresh_interval_ms / 1000
        self._fetch_bytes = fetch_bytes
        self._on_close = on_close
        self._positions = Positions()
        self._selected: dict[int, StreamInfo] = {}
        self._found_first: frozenset[int] = frozenset()
        self._schemas: dict[int, dict[str, StreamSchema]] = {}
        self._is_begun = self._is_idle = self._is_closed = False
        self._refusal: ConfigurationError | None = None
        """The error of every use in the child of a fork."""
        self._refresh_at = 0.0
        self._commit_at = self._own_at = self._duty_at = math.inf
        """When to commit, when to ask for the consumer's streams, and the earlier of both."""

    def __iter__(self) -> Generator[Record]:
        """Yield records, each done when the next one is asked for. Raises SbpError."""
        with closing(self._batches()) as batches:
            for at, batch in batches:
                seek_count = at.seek_count
                for record in records_of(batch):
                    at.done_offset = record.offset
                    at.next_offset = record.offset + 1
                    yield record
                    if time.monotonic() >= self._duty_at:
                        at.done_offset = at.next_offset
                        self._do_duties()
                    if at.seek_count != seek_count:
                        break

    def batches(self) -> Generator[Batch]:
        """Yield Arrow batches, each done when the next one is asked for. Raises SbpError."""
        with closing(self._batches()) as batches:
            for at, batch in batches:
                at.next_offset = batch.end_offset
                yield batch

    def commit(self) -> None:
        """Commit all records that were handed out, the last one included. Raises SbpError.

        Raises ConfigurationError without a group, MemberUnknownError if the consumer shares a group
        and was expelled from it: nothing is committed then, and others read the records again.
        """
        self._check_process()
        if not self._assignment.has_cursors:
            raise ConfigurationError("this consumer has no group to commit for; pass group=...")
        self._positions.finish()
        self._commit(self._positions.to_commit())

    def positions(self) -> dict[str, int]:
        """Return the offset of the next record of each stream, by name."""
        self._begin()
        return {each.stream: each.next_offset for each in self._positions.all}

    def lag(self) -> dict[str, int]:
        """Return how many records of each stream, by name, are there and not handed out yet."""
        self._begin()
        known = self._positions.all
        bounds = self._client.stream_bounds([each.stream_id for each in known])
        return {
            at.stream: held.next_offset - max(at.next_offset, held.start_offset)
            for at, held in zip(known, bounds, strict=True)
        }

    def seek(self, stream: str, to: Start) -> None:
        """Read on elsewhere in a stream; what is committed changes when it is committed next.

        Raises ConfigurationError for a stream that is not being read, OffsetOutOfRangeError for an
        offset that the stream does not have, SbpError.
        """
        self._begin()
        at = self._positions.of(stream)
        offsets = self._locate([at.stream_id], to)
        self._positions.seek(at, offsets[at.stream_id])

    def close(self) -> None:
        """Commit what is done, unless that is left to the caller. Idempotent. Raises SbpError."""
        if self._is_closed:
            return
        self._is_closed = True
        if self._on_close is not None:
            self._on_close(self)
        if self._refusal is not None:
            return
        try:
            self._commit_done()
        finally:
            self._assignment.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _batches(self) -> Generator[tuple[Position, Batch]]:
        """Yield what is fetched, with the position that the caller moves while it hands it out."""
        self._begin()
        while not self._is_closed:
            self._refresh_when_due()
            if time.monotonic() >= self._duty_at:  # also while no record comes
                self._do_duties()
            if not self._is_following and self._positions.is_over:
                self._commit_done()
                return
            for outcome in self._fetch():
                at = self._positions.maybe_at(outcome.stream_id)
                if at is None or not outcome.payload:
                    continue
                seek_count = at.seek_count
                for batch in self._decode(at, outcome):
                    if at.seek_count != seek_count:
                        break
                    yield at, batch
                    if at.seek_count == seek_count:
                        at.done_offset = at.next_offset
                    if time.monotonic() >= self._duty_at:
                        self._do_duties()

    def _fetch(self) -> list[FetchOutcome]:
        """Return what is there now of all streams, or what comes first."""
        items = self._positions.next_items(self._fetch_bytes)
        if not items:
            time.sleep(defaults.FETCH_WAIT_MS / 1000)
            return []
        wait_ms = defaults.FETCH_WAIT_MS if self._is_idle else 0
        if not self._is_following:
            wait_ms = defaults.END_WAIT_MS
        found = []
        with closing(self._client.fetch(items, max_wait_ms=wait_ms)) as outcomes:
            for outcome in outcomes:
                if outcome.error is not None:
                    raise outcome.error
                found.append(outcome)
                if outcome.payload and self._is_idle:
                    break  # the others may have nothing for as long as the fetch waits
        self._is_idle = self._is_following and not any(each.payload for each in found)
        if not self._is_following and not any(each.payload for each in found):
            missing = items[0]
            raise DeadlineExceededError(
                f"no records of stream {missing.stream_id} at offset {missing.fetch_offset} within"
                f" {wait_ms} ms, although it has them up to {missing.end_offset}; try again, then"
                " run `sbp log check` on its range server"
            )
        return found

    def _decode(self, at: Position, outcome: FetchOutcome) -> Iterator[Batch]:
        """Return the batches, each decoded when it is asked for, up to a damaged one."""
        envelopes = split_fetched(outcome.payload)
        known = self._schemas.setdefault(at.stream_id, {})
        if fingerprints_of(envelopes) - known.keys():
            versions = self._client.describe_schemas([at.stream_id])
            known.update((each.schema.fingerprint, each.schema) for each in versions[at.stream_id])
        return decode_fetched(at.stream, envelopes, at.next_offset, at.end_offset, known)

    def on_fork(self, error: ConfigurationError) -> None:
        """Hand out nothing: this is the copy in the child of a fork."""
        self._refusal = error
        self._duty_at = -math.inf

    def _check_process(self) -> None:
        if self._refusal is not None:
            raise self._refusal

    def _begin(self) -> None:
        self._check_process()
        if self._is_closed:
            raise ConfigurationError("this consumer is closed; make another one")
        if not self._is_begun:
            use_here(self)
            self._refresh()
            self._is_begun = True
            self._commit_done()

    def _refresh_when_due(self) -> None:
        """Find new streams that match, and follow changes of the assignment."""
        if self._is_following and self._selection.prefixes and time.monotonic() >= self._refresh_at:
            self._refresh()
            return
        self._take_own()

    def _refresh(self) -> None:
        selection = self._selection
        if selection.has_ids_only:
            there = self._client.describe_streams([*selection.ids])
        else:
            there = self._client.list_streams()
        self._selected = {each.stream_id: each for each in selection.of_streams(there)}
        if not self._is_begun:
            self._found_first = frozenset(self._selected)
        self._refresh_at = time.monotonic() + self._refresh_seconds
        self._take_own()

    def _take_own(self) -> None:
        """Begin to read the streams that are the consumer's now; give up those that are not."""
        own = self._assignment.own(frozenset(self._selected)) & self._selected.keys()
        interval_ms = self._assignment.own_interval_ms
        if interval_ms is not None:
            self._own_at = time.monotonic() + interval_ms / 1000
            self._duty_at = min(self._commit_at, self._own_at)
        lost = self._positions.stream_ids - own
        if lost:
            self._commit_done()
            self._positions.drop(lost)
        fresh = sorted(own - self._positions.stream_ids)
        if fresh:
            self._add(fresh)

    def _add(self, stream_ids: Sequence[int]) -> None:
        cursors = self._assignment.cursors(stream_ids)
        spans = {each: self._spans[each] for each in stream_ids if each in self._spans}
        rest = [each for each in stream_ids if each not in cursors and each not in spans]
        old = [each for each in rest if each in self._found_first]
        new = [each for each in rest if each not in self._found_first]
        # A stream that is found later is read from its beginning: all of it is new.
        offsets = {
            **(self._locate(old, self._start)),
            **(self._locate(new, "earliest")),
            **cursors,
            **{stream_id: span.start_offset for stream_id, span in spans.items()},
        }
        ends: dict[int, int | None] = dict.fromkeys(stream_ids)
        if not self._is_following:
            ends.update((stream_id, span.end_offset) for stream_id, span in spans.items())
            endless = [stream_id for stream_id, end in ends.items() if end is None]
            bounds = self._client.stream_bounds(endless) if endless else []
            ends.update((each.stream_id, each.next_offset) for each in bounds)
        for stream_id in stream_ids:
            self._positions.add(
                stream_id,
                self._selected[stream_id].label,
                offsets[stream_id],
                end_offset=ends[stream_id],
                committed_offset=cursors.get(stream_id),
            )

    def _locate(self, stream_ids: Sequence[int], to: Start) -> dict[int, int]:
        """Return the offsets of a start in streams."""
        if not stream_ids:
            return {}
        if isinstance(to, int):
            self._check_offset(stream_ids, to)
            return dict.fromkeys(stream_ids, to)
        if isinstance(to, datetime):
            return self._client.lookup_offsets(dict.fromkeys(stream_ids, timestamp_us_of(to)))
        if to not in {"earliest", "latest"}:
            raise ConfigurationError(
                f"start {to!r} is not 'earliest', 'latest', an offset or a datetime"
            )
        bounds = self._client.stream_bounds(stream_ids)
        return {
            each.stream_id: each.start_offset if to == "earliest" else each.next_offset
            for each in bounds
        }

    def _check_offset(self, stream_ids: Sequence[int], offset: int) -> None:
        """Raise OffsetOutOfRangeError unless all streams have an offset, or end there."""
        for bound in self._client.stream_bounds(stream_ids):
            if not bound.start_offset <= offset <= bound.next_offset:
                raise OffsetOutOfRangeError.of(
                    f"stream {self._selected[bound.stream_id].label} has no offset {offset}: it"
                    f" begins at {bound.start_offset} and ends at {bound.next_offset}; use one"
                    " from there, or 'earliest' or 'latest'"
                )

    def _do_duties(self) -> None:
        """Commit, and look which streams are the consumer's, if either is due."""
        self._check_process()
        now = time.monotonic()
        if now >= self._commit_at:
            self._commit_done()
        if now >= self._own_at:
            self._take_own()

    def _commit_done(self) -> None:
        if self._commit_seconds is not None and self._assignment.has_cursors:
            with suppress(MemberUnknownError):  # which the member has logged
                self._commit(self._positions.to_commit())
            self._commit_at = time.monotonic() + self._commit_seconds
            self._duty_at = min(self._commit_at, self._own_at)

    def _commit(self, offsets: Mapping[int, int]) -> None:
        if offsets:
            self._assignment.commit(offsets)
            self._positions.on_committed(offsets)
