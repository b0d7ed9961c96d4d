"""What the entries of a log mean, in the plainest way: lists and dictionaries."""

from __future__ import annotations

import random
from collections.abc import Iterable

from log_files import batch, created

from sbp_core.log.entry import Entry, EntryKind
from sbp_core.log.range_states import LoggedRange, RangeState

STREAMS = 3

Key = tuple[int, int]


class Model:
    """What a list of entries means, in the plainest way."""

    def __init__(self, entries: Iterable[Entry]) -> None:
        self.batches: dict[Key, list[Entry]] = {}
        self.first: dict[Key, int] = {}
        self.start: dict[Key, int] = {}
        self.state: dict[Key, RangeState] = {}
        for entry in entries:
            self.apply(entry)

    def copy(self) -> Model:
        other = Model([])
        other.batches = {key: list(batches) for key, batches in self.batches.items()}
        other.first, other.start = dict(self.first), dict(self.start)
        other.state = dict(self.state)
        return other

    def tail(self, key: Key) -> int:
        batches = self.batches[key]
        return batches[-1].base_offset + batches[-1].count if batches else self.first[key]

    def apply(self, entry: Entry) -> None:
        key = (entry.stream_id, entry.range_index)
        own = [each for each in self.batches if each[0] == entry.stream_id]
        match entry.kind:
            case EntryKind.RANGE_CREATED if key not in self.batches:
                self.batches[key] = []
                self.first[key] = self.start[key] = entry.base_offset
                self.state[key] = RangeState.OPEN
            case EntryKind.BATCH:
                self.batches[key].append(entry)
            case EntryKind.SEAL:
                self.state[key] = self.state[key].or_later(RangeState.SEALED)
            case EntryKind.STREAM_DELETED:
                self.state |= dict.fromkeys(own, RangeState.DELETED)
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
