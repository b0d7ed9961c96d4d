"""Recently appended batches that are kept in memory."""

from dataclasses import replace

from msgspec import structs

from sbp_core.log.bodies import RecentBodies
from tests.support.disk import FaultyDisk
from tests.support.log import batch, created, open_log

KEY = (1, 0)


def opened(bytes_max):
    log = open_log(FaultyDisk(), segment_bytes=1_000_000)
    log.recent = RecentBodies(bytes_max)
    return log


def appended(bytes_max, bodies):
    log = opened(bytes_max)
    log.append([created()])
    for offset, body in enumerate(bodies):
        log.append([batch(offset, body=body)])
    return log, list(log.batches_from(KEY, 0))


def kept(log, slots):
    """The bytes of the bodies of `slots`, if all are kept."""
    bodies = log.recent.maybe_bodies(slots)
    return None if bodies is None else [body.data for body in bodies]


def test_the_bodies_are_those_that_were_appended():
    log, slots = appended(10_000, [b"a", b"b", b"c"])
    assert kept(log, slots) == [b"a", b"b", b"c"]
    assert kept(log, slots[1:2]) == [b"b"]


def test_the_oldest_go_first_and_then_none_of_a_read_is_served():
    log, slots = appended(3000, [bytes([n]) * 800 for n in range(4)])
    assert kept(log, slots[2:]) == [b"\2" * 800, b"\3" * 800]
    assert kept(log, slots[1:]) is None


def test_a_body_that_is_larger_than_all_the_room_is_not_kept():
    log, slots = appended(1000, [b"small", b"large" * 1000])
    assert kept(log, slots[1:]) is None
    assert kept(log, slots[:1]) is None


def test_a_rewritten_segment_moves_its_entries():
    log, (slot,) = appended(10_000, [b"a"])
    rewritten = replace(slot.view, segment=replace(slot.view.segment, generation=1))
    assert kept(log, [slot]) == [b"a"]
    assert kept(log, [structs.replace(slot, view=rewritten)]) is None


def test_bodies_that_came_in_one_buffer_are_not_copied():
    buffer = bytearray(range(100)) * 1000
    bodies = [memoryview(buffer)[start : start + 25_000] for start in range(0, 100_000, 25_000)]
    log = opened(200_000)
    log.append([created(), *(batch(offset, body=body) for offset, body in enumerate(bodies))])
    found = kept(log, list(log.batches_from(KEY, 0)))
    assert found == bodies
    assert all(each.obj is buffer for each in found)


def test_a_body_does_not_keep_the_large_buffer_that_it_came_in():
    buffer = bytearray(100_000)
    bodies = [memoryview(buffer)[:1000], memoryview(buffer)[:60_000]]
    log, slots = appended(200_000, bodies)
    small, large = kept(log, slots)
    assert [small, large] == bodies
    assert len(small.obj) == 1000
    assert large.obj is buffer
