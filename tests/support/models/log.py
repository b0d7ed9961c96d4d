"""A reference model of a log's entries, in lists and dictionaries."""

from __future__ import annotations

import random
from collections.abc import Iterable
from dataclasses import replace

from sbp_core import limits
from sbp_core.log.bodies import read_bodies
from sbp_core.log.durable_log import Log
from sbp_core.log.entry import Entry
from sbp_core.log.states.range_states import LoggedRange, RangeState
from sbp_core.log.states.staged_entries import decode_end, decode_prefix
from sbp_core.log.states.staged_states import StagedStates, commit_entry, drop_entry, staged_entry
from sbp_core.log.states.writer_states import WriterStates, decode_mark, mark_of
from sbp_core.segment_format import EntryKind
from tests.support.log import batch, created

STREAMS = 3
WRITERS = ("v", "w")

Key = tuple[int, int]


class Model:
    """The state after a list of entries."""

    def __init__(self, entries: Iterable[Entry]) -> None:
        self.batches: dict[Key, list[Entry]] = {}
        self.first: dict[Key, int] = {}
        self.start: dict[Key, int] = {}
        self.state: dict[Key, RangeState] = {}
        self.numbered: dict[tuple[int, str], list[tuple[int, int]]] = {}
        """By stream and writer: base offset and count of each batch, from sequence 0 on."""
        self.staged: dict[tuple[Key, str], list[Entry]] = {}
        """By range and transaction: its batches, as they would stand there if published."""
        self.ends: dict[int, list[tuple[tuple[str, ...], bool, int, int, int]]] = {}
        """By stream: the ends of transactions, as a LoggedTxnEnd has them, without their times."""
        self.maybe_mark: Entry | None = None
        """The last entry applied, if it is a mark."""
        for entry in entries:
            self.apply(entry)

    def copy(self) -> Model:
        other = Model([])
        other.batches = {key: list(batches) for key, batches in self.batches.items()}
        other.first, other.start = dict(self.first), dict(self.start)
        other.state = dict(self.state)
        other.numbered = {writer: list(batches) for writer, batches in self.numbered.items()}
        other.staged = {staging: list(batches) for staging, batches in self.staged.items()}
        other.ends = {stream_id: list(ends) for stream_id, ends in self.ends.items()}
        other.maybe_mark = self.maybe_mark
        return other

    def tail(self, key: Key) -> int:
        batches = self.batches[key]
        return batches[-1].base_offset + batches[-1].count if batches else self.first[key]

    def apply(self, entry: Entry) -> None:
        key = (entry.stream_id, entry.range_index)
        own = [each for each in self.batches if each[0] == entry.stream_id]
        maybe_mark, self.maybe_mark = self.maybe_mark, None
        match entry.kind:
            case EntryKind.WRITER_MARK:
                self.maybe_mark = entry
            case EntryKind.RANGE_CREATED if key not in self.batches:
                self.batches[key] = []
                self.first[key] = self.start[key] = entry.base_offset
                self.state[key] = RangeState.OPEN
            case EntryKind.BATCH:
                self.batches[key].append(entry)
                if maybe_mark is not None:
                    writer = (entry.stream_id, decode_mark(maybe_mark)[0])
                    placed = (entry.base_offset, entry.count)
                    self.numbered.setdefault(writer, []).append(placed)
            case EntryKind.STAGED:
                txn_id, sequence = decode_prefix(entry.prefix)
                own_batches = self.staged.setdefault((key, txn_id), [])
                assert sequence == len(own_batches)
                own_batches.append(Entry(EntryKind.BATCH, *key, -1, entry.count, entry.body))
            case EntryKind.TXN_END:
                self._end(entry)
            case EntryKind.SEAL:
                self.state[key] = self.state[key].or_later(RangeState.SEALED)
            case EntryKind.STREAM_DELETED:
                self.state |= dict.fromkeys(own, RangeState.DELETED)
                for writer in [each for each in self.numbered if each[0] == entry.stream_id]:
                    del self.numbered[writer]
                for staging in [each for each in self.staged if each[0][0] == entry.stream_id]:
                    del self.staged[staging]
                self.ends.pop(entry.stream_id, None)
            case EntryKind.TRIM:
                for each in own:
                    offset = min(entry.base_offset, self.tail(each))
                    self.start[each] = max(self.start[each], offset)

    def _end(self, entry: Entry) -> None:
        key = (entry.stream_id, entry.range_index)
        ended = decode_end(entry)
        published = []
        if ended.is_commit:
            published = [self.staged.pop((key, txn_id)) for txn_id in ended.txn_ids]
            assert tuple(map(len, published)) == ended.batch_counts
        else:
            for (stream_id, range_index), txn_id in list(self.staged):
                is_meant = stream_id == key[0] and key[1] in (range_index, -1)
                if is_meant and txn_id in ended.txn_ids:
                    del self.staged[(stream_id, range_index), txn_id]
        for each in [each for batches in published for each in batches]:
            self.batches[key].append(replace(each, base_offset=self.tail(key)))
        end = (ended.txn_ids, ended.is_commit, key[1], entry.base_offset, entry.count)
        ends = self.ends.setdefault(key[0], [])
        ends.append(end)
        ends.sort(key=lambda each: each[2])  # those of earlier ranges may be copied late

    def ranges(self) -> list[LoggedRange]:
        return [
            LoggedRange(*key, self.start[key], self.tail(key), self.state[key])
            for key in sorted(self.batches)
        ]

    def check_writers(self, states: WriterStates) -> None:
        """Fail unless these are the writers, and the places of their last batches."""
        assert len(states) == len(self.numbered)
        for writer, placed in self.numbered.items():
            state = states.maybe_writer(*writer)
            assert state is not None
            assert state.last_sequence == len(placed) - 1
            kept = [(batch.base_offset, batch.record_count) for batch in state.batches]
            assert kept == placed[-limits.WRITER_BATCHES_KEPT :]

    def is_staged(self, states: StagedStates) -> bool:
        """Whether this is what is staged, and these are the last ends."""
        staged = {
            ((each.stream_id, each.range_index), each.txn_id): list(each.batches.record_counts)
            for each in states.stagings()
        }
        return staged == {
            staging: [each.count for each in batches] for staging, batches in self.staged.items()
        } and all(
            [
                (
                    each.txn_ids,
                    each.is_commit,
                    each.range_index,
                    each.base_offset,
                    each.record_count,
                )
                for each in states.ends(stream_id)
                if each.is_commit == is_commit
            ]
            == [each for each in self.ends.get(stream_id, ()) if each[1] == is_commit][
                -limits.TXN_ENDS_KEPT :
            ]
            for stream_id in {*self.ends, *states.stream_ids()}
            for is_commit in (True, False)
        )

    def check_staged(self, log: Log) -> None:
        """Fail unless this is what is staged in the log, and it can be read."""
        assert self.is_staged(log.staged)
        for (key, txn_id), batches in self.staged.items():
            staging = log.staged.maybe_staging(*key, txn_id)
            assert staging is not None
            read = read_bodies(key, list(log.staged_from(staging, 0)))
            assert read.error is None, read.error
            assert list(read.data) == [each.body for each in batches]

    def random_entries(
        self, choose: random.Random, body_bytes_max: int = 200, states: StagedStates | None = None
    ) -> list[Entry]:
        """Entries that may come next: one, or a mark with its batch."""
        entry = self.random_entry(choose, body_bytes_max, states)
        if entry.kind is not EntryKind.BATCH or choose.random() < 0.5:
            return [entry]
        writer_id = choose.choice(WRITERS)
        sequence = len(self.numbered.get((entry.stream_id, writer_id), ()))
        return [mark_of(entry, writer_id, sequence), entry]

    def small_batches(self, choose: random.Random) -> list[Entry]:
        """Batches worth merging that may come next, of several ranges in turn."""
        tails = {key: self.tail(key) for key in self.batches if self.state[key] is RangeState.OPEN}
        entries = []
        for _ in range(choose.randrange(40) if tails else 0):
            key = choose.choice(list(tails))
            entries.append(batch(tails[key], 1, choose.randbytes(3), key))
            tails[key] += 1
        return entries

    def random_entry(
        self, choose: random.Random, body_bytes_max: int = 200, states: StagedStates | None = None
    ) -> Entry:
        """An entry that may come next; with what is staged in the log, also of transactions."""
        if states is not None and choose.random() < 0.4:
            maybe_entry = self._maybe_of_transaction(choose, body_bytes_max, states)
            if maybe_entry is not None:
                return maybe_entry
        stream_id = choose.randrange(1, STREAMS + 1)
        indexes = [index for each, index in self.batches if each == stream_id]
        key = (stream_id, max(indexes, default=0))
        if not indexes or self.state[key] is RangeState.DELETED:
            return created(stream_id, len(indexes), choose.randrange(50))
        offset = choose.randrange(self.tail(key) + 2)
        if self.state[key] is RangeState.SEALED:
            return created(stream_id, key[1] + 1, self.tail(key))
        return choose.choices(
            [
                batch(
                    self.tail(key),
                    choose.randrange(1, 4),
                    choose.randbytes(choose.randrange(body_bytes_max)),
                    key,
                ),
                Entry(EntryKind.SEAL, *key, self.tail(key), 0),
                Entry(EntryKind.TRIM, stream_id, -1, offset, 0),
                Entry(EntryKind.STREAM_DELETED, stream_id, -1, 0, 0),
                created(*key, 7),
            ],
            (20, 2, 2, 1, 1),
        )[0]

    def _maybe_of_transaction(
        self, choose: random.Random, body_bytes_max: int, states: StagedStates
    ) -> Entry | None:
        key = choose.choice([*self.batches, None])
        if key is None or self.state[key] is RangeState.DELETED:
            return None
        txn_ids = [txn_id for each, txn_id in self.staged if each == key]
        is_open = self.state[key] is RangeState.OPEN
        if is_open and choose.random() < 0.7:
            txn_id = choose.choice([*txn_ids, f"{choose.getrandbits(40)}"])
            sequence = len(self.staged.get((key, txn_id), ()))
            body = choose.randbytes(choose.randrange(body_bytes_max))
            return staged_entry(*key, txn_id, sequence, choose.randrange(1, 4), body)
        some = choose.sample(txn_ids, choose.randrange(len(txn_ids) + 1))
        if not is_open or choose.random() < 0.2:
            return drop_entry(key[0], choose.choice((key[1], -1)), [*some, "unknown"])
        stagings = [states.maybe_staging(*key, txn_id) for txn_id in some]
        whole = [
            each
            for each in stagings
            if each is not None and each.batch_count == len(self.staged[key, each.txn_id])
        ]
        return commit_entry(*key, self.tail(key), whole)
