"""What the entries of a log mean, in the plainest way: lists and dictionaries."""

from __future__ import annotations

import random
from collections.abc import Iterable

from log_files import batch, created

from sbp_core import limits
from sbp_core.log.entry import Entry, EntryKind
from sbp_core.log.range_states import LoggedRange, RangeState
from sbp_core.log.writer_states import WriterStates, decode_mark, mark_of

STREAMS = 3
WRITERS = ("v", "w")

Key = tuple[int, int]


class Model:
    """What a list of entries means, in the plainest way."""

    def __init__(self, entries: Iterable[Entry]) -> None:
        self.batches: dict[Key, list[Entry]] = {}
        self.first: dict[Key, int] = {}
        self.start: dict[Key, int] = {}
        self.state: dict[Key, RangeState] = {}
        self.numbered: dict[tuple[int, str], list[tuple[int, int]]] = {}
        """By stream and writer: base offset and count of each batch, from sequence 0 on."""
        self.maybe_mark: Entry | None = None
        """What was applied last, if that is a mark."""
        for entry in entries:
            self.apply(entry)

    def copy(self) -> Model:
        other = Model([])
        other.batches = {key: list(batches) for key, batches in self.batches.items()}
        other.first, other.start = dict(self.first), dict(self.start)
        other.state = dict(self.state)
        other.numbered = {writer: list(batches) for writer, batches in self.numbered.items()}
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
            case EntryKind.SEAL:
                self.state[key] = self.state[key].or_later(RangeState.SEALED)
            case EntryKind.STREAM_DELETED:
                self.state |= dict.fromkeys(own, RangeState.DELETED)
                for writer in [each for each in self.numbered if each[0] == entry.stream_id]:
                    del self.numbered[writer]
            case EntryKind.TRIM:
                for each in own:
                    offset = min(entry.base_offset, self.tail(each))
                    self.start[each] = max(self.start[each], offset)

    def ranges(self) -> list[LoggedRange]:
        return [
            LoggedRange(*key, self.start[key], self.tail(key), self.state[key])
            for key in sorted(self.batches)
        ]

    def live_batches(self, key: Key) -> list[Entry]:
        """The batches of a range that hold a record that was not trimmed."""
        start = self.start[key]
        return [each for each in self.batches[key] if each.base_offset + each.count > start]

    def check_writers(self, states: WriterStates) -> None:
        """Fail unless these are the writers, and the places of their last batches."""
        assert len(states) == len(self.numbered)
        for writer, placed in self.numbered.items():
            state = states.maybe_writer(*writer)
            assert state is not None
            assert state.last_sequence == len(placed) - 1
            kept = [(batch.base_offset, batch.record_count) for batch in state.batches]
            assert kept == placed[-limits.WRITER_BATCHES_KEPT :]

    def random_entries(self, choose: random.Random, body_bytes_max: int = 200) -> list[Entry]:
        """Entries that may come next: one, or a mark with its batch."""
        entry = self.random_entry(choose, body_bytes_max)
        if entry.kind is not EntryKind.BATCH or choose.random() < 0.5:
            return [entry]
        writer_id = choose.choice(WRITERS)
        sequence = len(self.numbered.get((entry.stream_id, writer_id), ()))
        return [mark_of(entry, writer_id, sequence), entry]

    def random_entry(self, choose: random.Random, body_bytes_max: int = 200) -> Entry:
        """An entry that may come next."""
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
