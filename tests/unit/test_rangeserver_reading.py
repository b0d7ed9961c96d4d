"""Batches read from the log for an answer, and their checksums, if known."""

from sbp_core.log.bodies import RecentBodies
from sbp_core.rangeserver.fetching.payloads import joined, read_slots
from sbp_core.wire.checksum import crc32
from tests.support.disk import FaultyDisk
from tests.support.log import KEY, batch, created, open_log

LARGE = [bytes([n]) * 100_000 for n in range(3)]
SMALL = [bytes([n]) * 100 for n in range(3)]


def appended(bodies):
    log = open_log(FaultyDisk(), segment_bytes=10_000_000)
    log.append([created(), *(batch(offset, body=body) for offset, body in enumerate(bodies))])
    return log, list(log.batches_from(KEY, 0))


def test_the_checksum_of_what_is_in_memory_is_made_once():
    bodies = [bytearray(each) for each in LARGE]
    log, slots = appended(bodies)
    assert read_slots(log, KEY, slots).crc32 == crc32(LARGE)
    for body in bodies:
        body[0] ^= 1  # a second checksum would be another one
    for first in (0, 1, 0):
        for may_wait in (True, False):
            found = read_slots(log, KEY, slots[first:], may_wait=may_wait)
            assert found.crc32 == crc32(LARGE[first:])


def test_the_checksum_of_small_batches_is_left_to_the_frame():
    log, slots = appended(SMALL)
    found = read_slots(log, KEY, slots)
    assert (found.crc32, found.buffers) == (None, (b"".join(SMALL),))


def test_batches_read_from_the_disk_have_no_checksum():
    log, slots = appended(LARGE)
    log.recent = RecentBodies()
    assert read_slots(log, KEY, slots).crc32 is None


def test_answers_of_which_all_are_known_make_a_payload_that_is():
    log, slots = appended(LARGE)
    known = [read_slots(log, KEY, [slot]) for slot in slots]
    log.recent = RecentBodies()
    unknown = read_slots(log, KEY, slots[:1])
    assert joined([]) == ([], crc32([]))
    assert joined(known) == (LARGE, crc32(LARGE))
    assert joined([*known, unknown, known[0]]) == ([*LARGE, LARGE[0], LARGE[0]], None)
