"""Some columns of batches on the disk: what is read and sent, and which damage is noticed."""

import numpy as np
import pyarrow as pa
import pytest

from sbp_core.errors import LogCorruptionError
from sbp_core.log.bodies import RecentBodies
from sbp_core.rangeserver.fetching.payloads import read_slots
from sbp_core.records import (
    ColumnBounds,
    Selection,
    StreamSchema,
    batch_filter,
    decode_envelope,
    encode_columns,
    maybe_kept_columns,
    order_key,
    split_envelopes,
)
from tests.support.disk import FaultyDisk
from tests.support.log import KEY, batch, commit, created, open_log, staged

ROWS = 5_000


def wide(column_count, rows=ROWS):
    """A batch of equal columns, its schema, and what selects every tenth."""
    schema = StreamSchema.of(pa.schema([(f"c{at}", pa.int64()) for at in range(column_count)]))
    columns = [np.full(rows, at) for at in range(column_count)]
    rows = pa.record_batch(columns, schema=schema.arrow)
    kept = maybe_kept_columns(schema, pa.schema(list(schema.arrow)[5::10]))
    return bytes(encode_columns(rows, schema, stream_id=1, timestamp_ms=0)), Selection(
        (kept.projection,)
    )


class CountingDisk(FaultyDisk):
    """A disk that notes the length of each read, in bytes."""

    def __init__(self):
        super().__init__()
        self.read_lengths = []

    def open(self, path, *, is_writable):
        file = super().open(path, is_writable=is_writable)
        read = file.pread

        def counted(length, position):
            self.read_lengths.append(length)
            return read(length, position)

        file.pread = counted
        return file


def stored(*entries):
    """A log that has nothing in memory, its disk, and the places of its batches."""
    disk = CountingDisk()
    log = open_log(disk, segment_bytes=100_000_000)
    log.append([created(), *entries])
    for txn_id in {each.txn_id for each in log.staged.stagings()}:
        log.append([commit(log, txn_id)])
    log.recent = RecentBodies()
    slots = list(log.batches_from(KEY, 0))
    disk.read_lengths.clear()
    return log, disk, slots


def damage(disk, slot, at, bit=0):
    """Flip a bit of the byte `at` of an entry; to flip it again mends it."""
    file = disk.open(slot.view.file.path, is_writable=True)
    position = slot.location.position - slot.view.segment.base + at
    (byte,) = file.pread(1, position)
    file.pwritev([bytes([byte ^ 1 << bit])], position)


def test_the_wanted_columns_are_read_and_no_others():
    body, selection = wide(20)
    log, disk, slots = stored(batch(0, ROWS, body), batch(ROWS, ROWS, body))
    found = read_slots(log, KEY, slots, selection)
    assert sum(disk.read_lengths) < 0.12 * 2 * len(body)
    sent = memoryview(b"".join(found.buffers))
    assert [each.base_offset for each in split_envelopes(sent)] == [0, ROWS]
    log.recent.keep([batch(0, ROWS, body)], [slots[0].location])
    from_memory = read_slots(log, KEY, slots[:1], selection)
    assert b"".join(from_memory.buffers) == sent[: len(sent) // 2]


def test_no_more_is_read_than_may_be_sent():
    body, selection = wide(20)
    log, disk, slots = stored(*(batch(at * ROWS, ROWS, body) for at in range(9)))
    cut = sum(map(len, read_slots(log, KEY, slots[:1], selection).buffers))
    disk.read_lengths.clear()
    found = read_slots(log, KEY, slots, selection, bytes_max=3 * cut + 1)
    assert (found.slot_count, found.error) == (3, None)
    assert sum(disk.read_lengths) < 0.12 * 3 * len(body)
    assert read_slots(log, KEY, slots, selection, bytes_max=1).slot_count == 1
    entries = [batch(at * ROWS, ROWS, body) for at in range(9)]
    log.recent.keep(entries, [each.location for each in slots])
    assert read_slots(log, KEY, slots, selection, bytes_max=2 * len(body)).slot_count == 2
    assert read_slots(log, KEY, slots, selection, bytes_max=1).slot_count == 1


def test_a_batch_that_was_staged_gets_its_offset():
    body, selection = wide(20)
    log, _, slots = stored(batch(0), staged("x", 0, body, ROWS))
    found = read_slots(log, KEY, slots[1:], selection)
    (envelope,) = split_envelopes(memoryview(b"".join(found.buffers)))
    assert (envelope.base_offset, envelope.projection) == (1, selection.projections[0].kept)


@pytest.mark.parametrize("at", [4, 20, 30], ids=["checksum", "range", "offset"])
def test_a_damaged_header_is_not_served(at):
    body, selection = wide(20)
    log, disk, slots = stored(batch(0, ROWS, body), batch(ROWS, ROWS, body))
    damage(disk, slots[1], at)
    found = read_slots(log, KEY, slots, selection)
    assert isinstance(found.error, LogCorruptionError)
    assert found.slot_count == 1
    assert log.suspects


def test_another_entry_in_its_place_is_not_served():
    body, selection = wide(20)
    log, _, slots = stored(batch(0, ROWS, body))
    found = read_slots(log, (KEY[0], KEY[1] + 1), slots, selection)
    assert "another entry, BATCH" in str(found.error)


def test_damage_of_a_column_that_is_not_read_is_left_to_the_scrub():
    body, selection = wide(20)
    log, disk, slots = stored(batch(0, ROWS, body))
    damage(disk, slots[0], slots[0].location.length - 1)
    assert read_slots(log, KEY, slots, selection).error is None
    assert isinstance(read_slots(log, KEY, slots).error, LogCorruptionError)


def test_a_batch_of_which_many_small_parts_are_wanted_is_read_and_verified_whole():
    body, selection = wide(1_000, rows=100)
    log, disk, slots = stored(batch(0, 100, body))
    found = read_slots(log, KEY, slots, selection)
    assert sum(map(len, found.buffers)) < 0.2 * len(body)
    assert all(memoryview(each).nbytes == len(memoryview(each).obj) for each in found.buffers)
    assert len(disk.read_lengths) <= 3
    damage(disk, slots[0], slots[0].location.length - 1)
    assert isinstance(read_slots(log, KEY, slots, selection).error, LogCorruptionError)


def no_row_of(schema):
    """A selection of no row of batches whose statistics say that `n` is below 1000."""
    bounds = ColumnBounds("n", order_key(1_000, pa.int64()), None, takes_null=False)
    return Selection(filters=(batch_filter(schema.fingerprint, [bounds]),))


def test_no_bit_that_rots_in_front_of_a_skipped_batch_moves_offsets():
    """A count that rotted made the next batch seem to be read already (guarantees)."""
    schema = StreamSchema.of(pa.schema([("n", pa.int64()), ("v", pa.binary())]))
    rows = pa.record_batch([range(1_000), [bytes(100)] * 1_000], schema=schema.arrow)
    body = encode_columns(rows, schema, stream_id=1, timestamp_ms=5, stats_columns=["n"])
    log, disk, slots = stored(batch(0, 1_000, body))
    whole = decode_envelope(body)

    def read():
        return read_slots(log, KEY, slots, no_row_of(schema))

    front_bytes = len(body) - len(whole.body)
    before_bytes = slots[0].location.length - len(body)
    found = []
    for at in range(8 * front_bytes):
        place = (before_bytes + at // 8, at % 8)
        damage(disk, slots[0], *place)
        found.append(read())
        damage(disk, slots[0], *place)
    heads = [decode_envelope(b"".join(each.buffers)) for each in found if each.error is None]
    assert {(each.base_offset, each.record_count) for each in heads} == {(0, 1_000)}
    assert {each.skipped_bytes for each in heads} == {len(whole.body)}
    assert {type(each.error) for each in found} == {type(None), LogCorruptionError}
    assert decode_envelope(b"".join(read().buffers)).is_skipped
