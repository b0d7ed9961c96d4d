"""Small batches that a cleaner merges: bodies one behind the other, so that each is told apart."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from faulty_disk import FaultyDisk
from log_files import DIRECTORY, batch, created

from sbp_core.log.bodies import read_bodies
from sbp_core.log.durable_log import Log
from sbp_core.log.entry import Entry
from sbp_core.log.segment_rows import Slot
from sbp_core.log.states.range_states import RangeKey

SEGMENT_BYTES = 6_000
KEYS = [(1, 0), (2, 0)]


class Clock:
    """Each group is written a millisecond after the one before."""

    def __init__(self) -> None:
        self.now_ms = 1_000

    def tick(self) -> int:
        self.now_ms += 1
        return self.now_ms


def opened(disk: FaultyDisk, clock: Clock | None = None) -> Log:
    tick = (clock or Clock()).tick
    return Log.open(DIRECTORY, disk=disk, now_ms=tick, segment_bytes=SEGMENT_BYTES)


def small(offset: int, key: tuple[int, int] = (1, 0)) -> Entry:
    return batch(offset, body=b"%d:%d;" % (key[0], offset), key=key)


def filled(log: Log, count: int = 100) -> dict[tuple[int, int], list[Entry]]:
    """Small batches of two streams in turn, of which most are in full segments."""
    log.append([created(*key) for key in KEYS])
    appended: dict[tuple[int, int], list[Entry]] = {key: [] for key in KEYS}
    for offset in range(count):
        for key in KEYS:
            log.append([small(offset, key)])
            appended[key].append(small(offset, key))
    return appended


def slots(log: Log, key: tuple[int, int] = (1, 0), offset: int = 0) -> list[Slot]:
    return list(log.batches_from(key, offset))


def counts(log: Log, key: tuple[int, int] = (1, 0)) -> list[int]:
    return [slot.count for slot in slots(log, key)]


def check_all(log: Log, appended: dict[tuple[int, int], list[Entry]]) -> None:
    for key, entries in appended.items():
        for offset in range(len(entries)):
            check_batches(key, slots(log, key, offset), entries, offset)


def freed_bytes(log: Log) -> int:
    """Bytes that its full segments no longer take."""
    return sum(segment.end - segment.base - segment.size for segment in log.extent.sealed)


def concatenate(bodies: Iterable[memoryview]) -> tuple[int, bytes]:
    """All batches of a run belong together."""
    parts = [bytes(each) for each in bodies]
    return len(parts), b"".join(parts)


def check_batches(key: RangeKey, slots: Sequence[Slot], appended: Sequence[Entry], offset: int):
    """Fail unless these are all batches of a range that reach beyond an offset, some merged."""
    meant = [each for each in appended if each.base_offset + each.count > offset]
    first = slots[0].base_offset if slots else offset
    assert first <= max(offset, 0) or (meant and first == meant[0].base_offset)
    bodies = read_bodies(key, slots)
    if bodies.error is not None:
        raise bodies.error
    left = [each for each in appended if each.base_offset >= first]
    for slot, body in zip(slots, bodies.data, strict=True):
        parts = []
        while left and left[0].base_offset < slot.end_offset:
            parts.append(left.pop(0))
        assert (slot.base_offset, slot.count) == (
            parts[0].base_offset,
            sum(each.count for each in parts),
        )
        assert body == b"".join(each.body for each in parts)
    assert not left, "the last ones are not found"
