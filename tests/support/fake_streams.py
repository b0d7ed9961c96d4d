"""A streaming source in front of made-up streams, and what a query does with it."""

from __future__ import annotations

import json

from pyspark.sql.streaming.datasource import ReadAllAvailable

from sbp_core.client import (
    BoundsView,
    CursorInfo,
    MetadataChanges,
    RangeInfo,
    Reach,
    StreamBounds,
    StreamInfo,
    UnavailableRange,
)
from sbp_core.errors import ConnectError, NotFoundError, StatusCode
from sbp_spark import client_pool
from sbp_spark.client_pool import ClientPool
from sbp_spark.reading import input_partitions
from sbp_spark.reading.offsets import SourceOffset
from sbp_spark.row_schema import source_schema
from sbp_spark.streaming import stream_watch
from sbp_spark.streaming.stream_reader import SbpStreamReader

ALL = ReadAllAvailable()


class FakeCluster:
    """Streams by name: [id, created, start, next].

    `times` are those of the records of streams, by id, from offset 0 on; `lookups` is what was
    asked for. `cursors` are those of groups, by stream id. `fails` is raised instead of setting
    cursors or trimming. `placed` has the ranges of streams, by id, as (start, end, server); others
    have an open one of their own. `schemas` has the versions of schemas, by id. `away` are
    servers, or streams whose own one is meant. `stored` are the bytes of streams, by id. `waits`
    are the offsets that were waited for; then `on_wait` is called. `commits_had` are those that the
    metadata have had, as (number, life), the last one last; with none they are not counted.
    `commits_asked` are those that were asked for.
    """

    def __init__(self, **streams):
        self.streams = streams
        self.revision = 1
        self._changed_at = {}
        self.listings = 0
        self.times = {}
        self.lookups = []
        self.cursors = {}
        self.commits = []
        self.trims = []
        self.fails = None
        self.away = set()
        self.placed = {}
        self.schemas = {}
        self.commits_had = []
        self.commits_asked = []
        self.waits = []
        self.stored = {}
        self.on_wait = lambda: None

    @property
    def last_commit(self):
        return self.commits_had[-1] if self.commits_had else None

    def has_commit(self, commit):
        self.commits_asked.append(commit)
        return commit in self.commits_had if self.commits_had else None

    def metadata_changes(self, since=-1):
        if self.revision is None:
            return None
        changed = {each for each, at in self._changed_at.items() if at > since}
        return MetadataChanges(self.revision, frozenset(changed) if since >= 1 else None)

    def list_streams(self):
        self.listings += 1
        return self._infos()

    def _infos(self):
        return [StreamInfo(at[0], name, 1, 0, at[1]) for name, at in self.streams.items()]

    def describe_streams(self, refs):
        infos = {info.stream_id: info for info in self._infos()}
        named = {info.name: info for info in infos.values()}
        if missing := [each for each in refs if each not in infos and each not in named]:
            raise NotFoundError(StatusCode.NOT_FOUND, f"not found: {missing}")
        return [infos.get(each) or named[each] for each in refs]

    def find_streams(self, stream_ids):
        return [info for info in self._infos() if info.stream_id in stream_ids]

    def describe_schemas(self, stream_ids, *, newest_only=False):
        first = -1 if newest_only else 0
        return {each: tuple(self.schemas.get(each, ())[first:]) for each in stream_ids}

    def stored_bytes(self, stream_ids, *, timeout_ms):
        return self.stored

    def change(self, **streams):
        """Create, or delete those that are None."""
        self.revision += 1
        for name, at in streams.items():
            self._changed_at[(at or self.streams[name])[0]] = self.revision
        self.streams |= streams
        self.streams = {name: at for name, at in self.streams.items() if at is not None}

    def stream_bounds(self, stream_ids):
        bounds = {entry[0]: entry[2:] for entry in self.streams.values()}
        if missing := [each for each in stream_ids if each not in bounds]:
            raise NotFoundError(StatusCode.NOT_FOUND, f"not found: {missing}")
        return [StreamBounds(each, *bounds[each]) for each in stream_ids]

    def watch_bounds(self, stream_ids, earlier=None):
        bounds = {each.stream_id: each for each in self.stream_bounds(stream_ids)}
        if any(self.ranges_ahead(each, each.next_offset)[-1][-1] for each in bounds.values()):
            raise ConnectError("scripted")
        now = BoundsView(bounds, None, self.revision)
        return earlier if earlier == now else now

    def _away_servers(self):
        return {f"rs{each}:1" if isinstance(each, int) else each for each in self.away}

    def ranges_ahead(self, bound, offset):
        """The ranges of a stream that end behind an offset, with whether the server is down."""
        own = [(bound.start_offset, None, f"rs{bound.stream_id}:1")]
        away = self._away_servers()
        return [
            (start, end, server, server in away)
            for start, end, server in self.placed.get(bound.stream_id, own)
            if end is None or end > offset
        ]

    def lookup_offsets(self, timestamps, *, start_offsets, timeout_ms):
        self.lookups.append(timestamps)
        bounds = {each.stream_id: each for each in self.stream_bounds(list(timestamps))}
        first = {
            stream_id: max(bound.start_offset, start_offsets.get(stream_id, 0))
            for stream_id, bound in bounds.items()
        }
        silent = {
            stream_id
            for stream_id, bound in bounds.items()
            if any(is_away for *_, is_away in self.ranges_ahead(bound, first[stream_id]))
        }
        if silent and timeout_ms is None:
            raise ConnectError("scripted")
        return {
            stream_id: next(
                (
                    offset
                    for offset in range(first[stream_id], bounds[stream_id].next_offset)
                    if self.times[stream_id][offset] * 1000 >= timestamp_us
                ),
                bounds[stream_id].next_offset,
            )
            for stream_id, timestamp_us in timestamps.items()
            if stream_id not in silent
        }

    def describe_cursors(self, group, stream_ids):
        found = self.cursors.get(group, {})
        return [CursorInfo(each, found[each], 1) for each in stream_ids if each in found]

    def commit_cursors(self, group, offsets):
        if self.fails:
            raise self.fails
        self.commits.append(offsets)
        self.cursors.setdefault(group, {}).update(offsets)

    def trim_streams(self, offsets):
        if self.fails:
            raise self.fails
        self.trims.append(offsets)
        for entry in self.streams.values():
            entry[2] = max(entry[2], offsets.get(entry[0], 0))

    def reach(self, positions, *, timeout_ms, spared):
        found = {}
        for bound in self.stream_bounds(list(positions)):
            stream_id, error = bound.stream_id, ConnectError("scripted")
            pieces = self.ranges_ahead(bound, positions[stream_id] or 0)
            away = tuple(UnavailableRange(*piece, error) for *piece, is_away in pieces if is_away)
            is_tail_away = pieces and pieces[-1][-1]
            tail = None if is_tail_away else bound.next_offset
            found[stream_id] = Reach(stream_id, bound.start_offset, tail, away)
        return found

    def probe(self, endpoints, *, timeout_ms):
        away = self._away_servers()
        return {each: ConnectError("scripted") for each in endpoints if each in away}

    def fetch(self, items, *, max_wait_ms=None):
        if max_wait_ms is None:
            raise ConnectError("made-up streams have no records")
        self.waits.append({item.stream_id: item.fetch_offset for item in items})
        self.on_wait()
        return (outcome for outcome in ())

    def list_ranges(self, stream_ids, *, as_of=None):
        starts = {entry[0]: entry[2] for entry in self.streams.values()}
        return {each: (RangeInfo(each, 0, starts[each], None, 0, ("h:1",)),) for each in stream_ids}


def use_client(monkeypatch, client):
    """Let this process have the same client of every cluster."""
    monkeypatch.setattr(client_pool, "PROCESS_POOL", ClientPool(lambda *_: client))


def use_fake_cluster(monkeypatch):
    """Two streams that the source reads as those of a cluster, without any wait."""
    fake = FakeCluster(a=[1, 100, 0, 50], b=[2, 200, 10, 30])
    use_client(monkeypatch, fake)
    for module in (input_partitions, stream_watch):
        monkeypatch.setattr(module, "DOUBT_WAITS_S", (0, 0, 0, 0))
    return fake


def reader(streams="a,b", **options):
    given = {"endpoint": "h:1", "streams": streams} | options
    return SbpStreamReader(given, source_schema(include_headers=False))


def positions(offset):
    return SourceOffset.from_json(offset).streams


def nexts(offset):
    return SourceOffset.from_json(offset).next_offsets()


def spans(partitions):
    return sorted(
        (s.stream_id, s.start_offset, s.end_offset) for each in partitions for s in each.spans
    )


def read_up(query, begin=None):
    """Read until nothing is new; what was read, and where it ended."""
    offset, read = begin or query.initialOffset(), []
    while (end := query.latestOffset(offset, ALL)) != offset:
        read += spans(query.partitions(offset, end))
        offset = json.loads(json.dumps(end))
    return read, offset
