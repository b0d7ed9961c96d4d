"""The store against a model of dictionaries, through crashes, in both homes."""

from dataclasses import replace
from functools import partial

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule, run_state_machine_as_test

from sbp_core.errors import ConditionFailedError, NotFoundError, SbpError
from sbp_core.pd.model import (
    NO_CURSOR,
    CursorChange,
    CursorRecord,
    GroupRecord,
    NewStream,
    RangeRecord,
    RangeServerRecord,
    StreamChange,
    StreamRecord,
)
from tests.support.clock import examples
from tests.support.metadata import SqliteHome

NAMES = st.one_of(st.none(), st.sampled_from(["a", "b", "A"]))
SERVERS = st.integers(1, 3)
PICKS = st.integers(0, 7)
"""Which stream: a position among those ever created, so that deleted ones are asked for too."""
NO_STREAM = 1_000_000
PROPERTIES = st.dictionaries(
    st.sampled_from(["a", "B"]), st.sampled_from([None, "", "x", "\u00e9"]), max_size=2
)
OFFSETS = st.one_of(st.integers(NO_CURSOR, 3), st.just(2**63 - 1))


class StoreMachine(RuleBasedStateMachine):
    def __init__(self, home):
        super().__init__()
        self.home = home
        self.store = self.home.open()
        self.cluster_id = self.store.cluster_id
        self.streams, self.ranges, self.addresses = {}, {}, {}
        self.cursors = {}
        self.properties = {}
        self.stream_ids, self.server_ids = [], []
        self.revision = 0
        self.seen = {0: ({}, {})}
        self.known_since = None

    def teardown(self):
        self.home.empty()

    def pick(self, position):
        return self.stream_ids[position] if position < len(self.stream_ids) else NO_STREAM

    def bump(self, changed):
        now = self.store.revision()
        assert (now > self.revision) == bool(changed)
        if self.known_since is None and changed:
            self.known_since = self.revision
        self.revision = now
        self.seen[now] = dict(self.streams), dict(self.ranges)

    @rule(wanted=st.lists(st.tuples(NAMES, SERVERS), max_size=4))
    def create_streams(self, wanted):
        news = [NewStream(name, 1, 1, 7, (server,)) for name, server in wanted]
        created = self.store.create_streams(news, 11)
        names = {stream.name for stream in self.streams.values()} - {None}
        for new, made in zip(news, created, strict=True):
            assert (made is None) == (new.name in names)
            if made is None:
                continue
            stream, first = made
            assert stream.stream_id not in self.stream_ids
            assert stream == StreamRecord(stream.stream_id, new.name, 1, 1, 7, 11)
            self.stream_ids.append(stream.stream_id)
            self.streams[stream.stream_id] = stream
            self.ranges[stream.stream_id, 0] = first
            names |= {new.name} - {None}
        self.bump(any(created))

    @rule(picks=st.lists(PICKS, max_size=3))
    def delete_streams(self, picks):
        expected = []
        for stream_id in map(self.pick, picks):
            expected.append(self.streams.pop(stream_id, None))
            self.ranges = {key: each for key, each in self.ranges.items() if key[0] != stream_id}
            self.cursors = {key: each for key, each in self.cursors.items() if key[1] != stream_id}
            self.properties.pop(stream_id, None)
        assert self.store.delete_streams([self.pick(pick) for pick in picks]) == expected
        self.bump(any(expected))

    @rule(
        pick=PICKS,
        server_ids=st.lists(SERVERS, min_size=1, max_size=2, unique=True),
        length=st.sampled_from([None, 0, 5]),
        is_repeat=st.booleans(),
    )
    def create_range(self, pick, server_ids, length, is_repeat):
        stream_id = self.pick(pick)
        indexes = [index for owner, index in self.ranges if owner == stream_id]
        index = max(indexes, default=-1) + 1
        if is_repeat and indexes:
            index -= 1
        start = 10 * index
        end = None if length is None else start + length
        new = RangeRecord(stream_id, index, start, end, 1, tuple(server_ids), 11)
        (is_made,) = self.store.create_ranges([new])
        assert is_made == (stream_id in self.streams and index not in indexes)
        if is_made:
            self.ranges[stream_id, index] = new
        self.bump(is_made)

    @rule(pick=PICKS, bytes_max=st.integers(0, 2), changed=PROPERTIES, condition=PROPERTIES)
    def update_stream(self, pick, bytes_max, changed, condition):
        stream_id = self.pick(pick)
        known = self.properties.get(stream_id, {})
        change = StreamChange(
            stream_id, None, None, bytes_max, properties=changed, expected=condition
        )
        differing = [key for key, value in condition.items() if known.get(key) != value]
        if stream_id not in self.streams:
            outcome = NotFoundError
        elif differing:
            outcome = ConditionFailedError
        else:
            outcome = replace(self.streams[stream_id], retention_bytes=bytes_max)
            self.streams[stream_id] = outcome
            present = {key: each for key, each in {**known, **changed}.items() if each is not None}
            self.properties[stream_id] = present
        (found,) = self.store.update_streams([change])
        assert (type(found) if isinstance(found, SbpError) else found) == outcome
        self.bump(isinstance(outcome, StreamRecord))

    @rule(
        group=st.sampled_from(["g", "h"]),
        moves=st.lists(st.tuples(PICKS, OFFSETS, st.one_of(st.none(), OFFSETS)), max_size=3),
        time_ms=st.integers(0, 9),
    )
    def commit_cursors(self, group, moves, time_ms):
        wanted = [CursorChange(self.pick(pick), *offsets) for pick, *offsets in moves]
        outcomes = []
        for stream_id, offset, condition in wanted:
            current = self.cursors.get((group, stream_id))
            current_offset = NO_CURSOR if current is None else current.next_offset
            if offset != NO_CURSOR and stream_id not in self.streams:
                outcomes.append(NotFoundError)
            elif condition not in (None, current_offset):
                outcomes.append(ConditionFailedError)
            else:
                outcomes.append(type(None))
                self.cursors[group, stream_id] = CursorRecord(stream_id, offset, time_ms)
                if offset == NO_CURSOR:
                    del self.cursors[group, stream_id]
        assert list(map(type, self.store.cursors.commit(group, wanted, time_ms))) == outcomes
        self.bump(False)

    @rule()
    def allocate(self):
        server_id = self.store.servers.allocate_id()
        assert server_id not in self.server_ids
        self.server_ids.append(server_id)

    @rule(server_id=SERVERS, port=st.integers(1, 2))
    def register(self, server_id, port):
        address = f"h:{port}"
        is_known = server_id in self.server_ids
        assert self.store.servers.register(RangeServerRecord(server_id, address)) == is_known
        is_moved = is_known and self.addresses.get(server_id) != address
        self.bump(is_moved)
        if is_moved:
            self.known_since = self.revision  # any stream may be on that server
            self.addresses[server_id] = address

    @rule()
    def crash(self):
        self.store = self.home.crash()
        self.known_since = None

    @invariant()
    def changed_streams_are_known(self):
        for revision, (streams, ranges) in self.seen.items():
            changed = self.store.servers.maybe_changed_since(revision)
            if revision == self.revision:
                assert changed == []
            elif self.known_since is None or revision < self.known_since:
                assert changed is None
            else:
                differing = streams.items() ^ self.streams.items()
                moved = ranges.items() ^ self.ranges.items()
                assert {each for each, _ in differing} | {key[0] for key, _ in moved} <= {*changed}

    @invariant()
    def store_equals_model(self):
        store = self.store
        assert store.cluster_id == self.cluster_id
        assert store.servers.addresses() == self.addresses
        assert store.streams_after(-1, 1000) == [self.streams[i] for i in sorted(self.streams)]
        everything = [self.ranges[key] for key in sorted(self.ranges)]
        assert store.ranges_after((-1, -1), 1000, stream_id=None, server_id=None) == everything
        for group in ("g", "h"):
            kept = self.cursors_of(group)
            assert store.cursors.after(group, -1, 1000) == [kept[each] for each in sorted(kept)]
        assert store.cursors.groups_after("", 1000) == [
            GroupRecord(group, max(times))
            for group in ("g", "h")
            if (
                times := [
                    each.committed_at_ms for key, each in self.cursors.items() if key[0] == group
                ]
            )
        ]
        present = {key: each for key, each in self.properties.items() if each}
        assert store.properties.all() == present
        counts = {}
        for server_id in (1, 2, 3):
            hosted = [each for each in everything if server_id in each.server_ids]
            listed = store.ranges_after((-1, -1), 1000, stream_id=None, server_id=server_id)
            assert listed == hosted
            open_count = sum(each.end_offset is None for each in hosted)
            if open_count:
                counts[server_id] = open_count
        assert store.open_range_counts() == counts

    @invariant()
    def everything_is_found_by_id(self):
        """In any order, and page by page; in SQLite only, as PostgreSQL gets the same queries."""
        if not isinstance(self.home, SqliteHome):
            return
        for stream_id in (*self.stream_ids, NO_STREAM):
            self.check_ranges_of(stream_id)
        asked = [*reversed(self.stream_ids), NO_STREAM]
        assert self.store.streams_by_id(asked) == [self.streams.get(each) for each in asked]
        named = {each.name: each for each in self.streams.values()}
        names = ["b", "A", "none", "a"]
        assert self.store.streams_by_name(names) == [named.get(each) for each in names]
        kept = self.cursors_of("g")
        assert self.store.cursors.of_streams("g", asked) == [kept.get(each) for each in asked]
        for after in (-1, *kept):
            later = [kept[each] for each in sorted(kept) if each > after]
            assert self.store.cursors.after("g", after, 2) == later[:2]

    def check_ranges_of(self, stream_id):
        own = [self.ranges[key] for key in sorted(self.ranges) if key[0] == stream_id]
        assert self.listed(stream_id=stream_id) == own
        assert self.store.maybe_last_range(stream_id) == (own[-1] if own else None)
        hosted = [each for each in own if 2 in each.server_ids]
        assert self.listed(stream_id=stream_id, server_id=2) == hosted

    def cursors_of(self, group):
        return {key[1]: each for key, each in self.cursors.items() if key[0] == group}

    def listed(self, *, stream_id=None, server_id=None):
        """All ranges, two at a time."""
        found, after = [], (-1, -1)
        while page := self.store.ranges_after(after, 2, stream_id=stream_id, server_id=server_id):
            assert (page[0].stream_id, page[0].range_index) > after
            found += page
            after = (page[-1].stream_id, page[-1].range_index)
        return found


def test_a_store_equals_a_model(home):
    count = examples(50 if isinstance(home, SqliteHome) else 15)
    run_state_machine_as_test(
        partial(StoreMachine, home),
        settings=settings(max_examples=count, stateful_step_count=25, deadline=None),
    )
