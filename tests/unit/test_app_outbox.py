"""The records of a producer between `send` and the acknowledgement."""

import asyncio
import threading
from concurrent import futures

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from sbp_core.app.delivery import Delivery, Receipt
from sbp_core.app.encoding import Encoded, Target
from sbp_core.app.outbox import Batching, Outbox, State
from sbp_core.errors import ConfigurationError, DeadlineExceededError, SbpError

BATCHING = Batching(batch_bytes=150, batch_records=5, linger_ms=1_000, buffer_bytes=600)
TARGETS = {each: Target(f"s{each}", each, None) for each in range(1, 4)}


STREAMS = st.integers(1, 3)


def offer(outbox, stream_id, value):
    return outbox.offer(TARGETS[stream_id], value, None, None, None)


def values_of(batch):
    return [batch.batch] if isinstance(batch, Encoded) else batch.values


class Outside(RuleBasedStateMachine):
    """A caller that sends to streams, a clock, and servers that acknowledge in any order, or fail.

    `waiting` has the values of each stream that are not settled, in the order of sending.
    """

    def __init__(self):
        super().__init__()
        self.now = 0.0
        self.outbox = Outbox(BATCHING, lambda: self.now)
        self.count = 0
        self.waiting = {1: [], 2: [], 3: []}
        self.taken = {}
        self.taken_count = 0

    def next_value(self, stream_id, size_bytes=0):
        self.count += 1
        value = (b"%d" % self.count).ljust(size_bytes)
        self.waiting[stream_id].append(value)
        return value

    def has_room(self):
        return self.outbox.state is State.OPEN and self.outbox.room_bytes > 0

    @precondition(has_room)
    @rule(stream_id=STREAMS, size_bytes=st.integers(0, 200))
    def send(self, stream_id, size_bytes):
        if stream_id in self.outbox.failed:
            with pytest.raises(SbpError, match="gone"):
                offer(self.outbox, stream_id, b"")
            return
        _, index = offer(self.outbox, stream_id, self.next_value(stream_id, size_bytes))
        assert index < BATCHING.batch_records

    @precondition(lambda self: not self.has_room() and self.outbox.state is State.OPEN)
    @rule(stream_id=STREAMS)
    def send_without_room(self, stream_id):
        assert offer(self.outbox, stream_id, b"") is None
        assert not self.outbox.offer_encoded(Encoded(stream_id, b"", 1))

    @precondition(has_room)
    @rule(stream_id=STREAMS)
    def send_an_encoded_batch(self, stream_id):
        if stream_id in self.outbox.failed:
            with pytest.raises(SbpError, match="gone"):
                self.outbox.offer_encoded(Encoded(stream_id, b"", 1))
            return
        assert self.outbox.offer_encoded(Encoded(stream_id, self.next_value(stream_id), 1))

    @rule(seconds=st.floats(0, 0.6))
    def wait(self, seconds):
        self.now += seconds

    @rule()
    def take(self):
        is_due = self.outbox.seconds_until_due() == 0
        batches = self.outbox.take(bytes_max=150)
        assert bool(batches) == is_due
        assert len(batches) == 1 or sum(each.size_bytes for each in batches) <= 150
        for each in batches:
            is_small = each.size_bytes <= BATCHING.batch_bytes
            assert is_small or each.record_count == 1 or isinstance(each, Encoded)
        for each in batches:
            self.taken[self.taken_count] = each
            self.taken_count += 1

    @precondition(lambda self: self.taken)
    @rule(data=st.data())
    def settle(self, data):
        order = data.draw(st.sampled_from(sorted(self.taken)))
        batch = self.taken.pop(order)
        number, stored = self.outbox.store(order)
        assert stored is batch
        self.outbox.settle(number)
        for each in values_of(batch):
            self.waiting[batch.stream_id].remove(each)

    @rule(stream_id=STREAMS)
    def fail(self, stream_id):
        if stream_id not in self.outbox.failed:
            lost = self.outbox.fail_stream(stream_id, SbpError("gone"))
            assert [v for each in lost for v in values_of(each)] == self.waiting[stream_id]
            self.waiting[stream_id] = []
            self.taken = {n: each for n, each in self.taken.items() if each.stream_id != stream_id}

    @rule()
    def flush(self):
        number = self.outbox.seal()
        assert self.outbox.is_settled_before(number) == (not any(self.waiting.values()))

    @rule()
    def close(self):
        self.outbox.close()

    @invariant()
    def it_is_closed_once_all_is_settled(self):
        is_all_settled = not any(self.waiting.values())
        assert self.outbox.is_empty == is_all_settled
        expected = {State.OPEN, State.CLOSED if is_all_settled else State.CLOSING}
        assert self.outbox.state in expected

    @invariant()
    def room_is_what_is_not_in_use(self):
        if self.outbox.state is State.OPEN:
            room_bytes = BATCHING.buffer_bytes - self.outbox.unsettled_bytes
            assert self.outbox.room_bytes == room_bytes
        else:
            assert self.outbox.room_bytes == 0

    @invariant()
    def batches_of_a_stream_are_taken_in_the_order_of_their_records(self):
        counts = self.outbox.unsettled_counts()
        for stream_id, waiting in self.waiting.items():
            assert counts[stream_id] == len(waiting)
            batches = [each for _, each in sorted(self.taken.items())]
            taken = [v for b in batches if b.stream_id == stream_id for v in values_of(b)]
            assert taken == sorted(taken, key=int)


TestOutside = Outside.TestCase


def test_a_failure_gives_up_all_that_is_not_settled():
    outbox = Outbox(BATCHING, lambda: 0.0)
    for _ in range(7):
        offer(outbox, 1, b"")
    outbox.take()
    number, stored = outbox.store(0)
    lost = outbox.fail(SbpError("the disk is full"))
    assert [each.record_count for each in lost] == [2]
    assert outbox.unsettled_bytes == stored.size_bytes, "it is appended, and its callbacks run"
    outbox.settle(number)
    assert outbox.unsettled_bytes == outbox.room_bytes == 0
    with pytest.raises(SbpError, match="the disk is full"):
        outbox.check_open()


@pytest.mark.parametrize(
    ("setting", "fault"),
    [
        ({"batch_bytes": 0}, "batch_bytes 0 is not in 1"),
        ({"batch_records": 1 << 30}, "batch_records 1073741824 is not in 1"),
        ({"linger_ms": -1}, "linger_ms -1 is negative"),
        ({"buffer_bytes": 1}, "less than one batch"),
    ],
)
def test_settings_that_make_no_sense_are_refused(setting, fault):
    with pytest.raises(ConfigurationError, match=fault):
        Batching(**setting)


def test_a_future_is_done_when_its_batch_is():
    receipt = Receipt()
    delivery, found = Delivery(receipt, 3), []
    delivery.add_done_callback(found.append)
    assert not delivery.done()
    with pytest.raises(TimeoutError, match=r"not acknowledged after 0\.001 s"):
        delivery.result(0.001)
    receipt.settle(10)
    assert (delivery.result(), delivery.exception(), found) == (13, None, [delivery])
    delivery.add_done_callback(found.append)
    assert len(found) == 2


def test_deliveries_work_where_futures_do():
    settled, failed, late = Receipt(), Receipt(), Receipt()
    settled.settle(5)
    failed.settle(-1, SbpError("gone"))
    first, second, third = Delivery(settled, 1), Delivery(failed, 0), Delivery(late, 2)
    done, waiting = futures.wait([first, second, third], return_when=futures.FIRST_COMPLETED)
    assert (done, waiting) == ({first, second}, {third})
    assert (first.result(), str(second.exception()), third.cancel()) == (6, "gone", False)
    threading.Timer(0, late.settle, [10]).start()
    assert next(futures.as_completed([third])) is third

    async def wrapped():
        return await asyncio.wrap_future(Delivery(late, 0))

    assert (third.result(), asyncio.run(wrapped())) == (12, 10)


def test_the_old_name_of_a_timeout_is_in_milliseconds():
    with (
        pytest.warns(DeprecationWarning, match=r"timeout=\.\.\., in seconds"),
        pytest.raises(DeadlineExceededError, match=r"after 0\.001 s"),
    ):
        Delivery(Receipt(), 0).result(timeout_ms=1)


def test_a_callback_that_raises_is_logged_and_holds_nothing_up(caplog):
    receipt, found = Receipt(), []
    receipt.on_settled(lambda: 1 / 0)
    receipt.on_settled(lambda: found.append(1))
    receipt.settle(-1, SbpError("no"))
    assert found == [1]
    assert "callback failed" in caplog.text
    with pytest.raises(SbpError, match="no"):
        Delivery(receipt, 0).result()


def test_a_delivery_that_is_looked_into_takes_no_lock_that_others_may_hold():
    """Two threads that waited for the same deliveries would wait for each other."""

    class Watched(Delivery):
        def set_running_or_notify_cancel(self):
            raise AssertionError("this takes the condition, which others can see already")

    delivery = Watched(Receipt(), 0)
    assert not futures.wait([delivery], timeout=0).done
    assert not delivery.cancel()


def test_a_callback_may_raise_what_cancels_a_task(caplog):
    receipt = Receipt()

    def cancelled():
        raise asyncio.CancelledError

    receipt.on_settled(cancelled)
    receipt.settle(0)
    assert "callback failed" in caplog.text


def test_an_error_that_is_raised_again_keeps_nothing_of_the_last_time():
    outbox = Outbox(BATCHING, lambda: 0.0)
    outbox.fail_stream(1, SbpError("gone"))
    depths = []
    for _ in range(3):
        with pytest.raises(SbpError) as caught:
            offer(outbox, 1, b"")
        depths.append(len(caught.traceback))
    assert len(set(depths)) == 1


def test_a_delivery_is_not_waited_for_in_a_callback(caplog):
    receipt, other = Receipt(), Delivery(Receipt(), 0)
    receipt.on_settled(other.exception)
    receipt.settle(0)
    assert "exception() in a callback" in caplog.text
