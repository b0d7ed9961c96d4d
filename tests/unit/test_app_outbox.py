"""The records of a producer between `send` and the acknowledgement."""

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from sbp_core.app.delivery import Delivery, Receipt
from sbp_core.app.outbox import Batching, Encoded, Outbox, State
from sbp_core.errors import ConfigurationError, DeadlineExceededError, SbpError

BATCHING = Batching(batch_bytes=100, batch_records=5, linger_ms=1_000, buffer_bytes=400)


class Outside(RuleBasedStateMachine):
    """A caller that sends, a clock, and a server that acknowledges in any order."""

    def __init__(self):
        super().__init__()
        self.now = 0.0
        self.outbox = Outbox(BATCHING, lambda: self.now)
        self.sent = []
        self.taken = {}
        self.settled = []
        self.next_number = 0

    @precondition(lambda self: self.outbox.state is State.OPEN and self.outbox.room_bytes > 0)
    @rule(size_bytes=st.integers(1, 150))
    def send(self, size_bytes):
        value = b"%d" % len(self.sent)
        batch, _ = self.outbox.add(value, None, None, 0, size_bytes)
        assert batch.values[-1] == value
        assert len(batch.values) <= BATCHING.batch_records
        assert batch.size_bytes <= BATCHING.batch_bytes or len(batch.values) == 1
        self.sent.append(value)

    @precondition(lambda self: self.outbox.state is State.OPEN and self.outbox.room_bytes > 0)
    @rule()
    def send_an_encoded_batch(self):
        value = b"%d" % len(self.sent)
        self.outbox.add_encoded(Encoded(value, 1))
        self.sent.append(value)

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
            self.taken[self.next_number] = each
            self.next_number += 1

    @precondition(lambda self: self.taken)
    @rule(data=st.data())
    def settle(self, data):
        number = data.draw(st.sampled_from(sorted(self.taken)))
        batch = self.taken.pop(number)
        assert self.outbox.unsettled(number) is batch
        self.outbox.settle(number)
        self.settled += batch.values if not isinstance(batch, Encoded) else [batch.batch]

    @rule()
    def flush(self):
        number = self.outbox.seal()
        is_settled = set(self.settled) == set(self.sent)
        assert self.outbox.is_settled_before(number) == is_settled

    @rule()
    def close(self):
        self.outbox.close()

    @invariant()
    def it_is_closed_once_all_is_settled(self):
        is_all_settled = len(self.settled) == len(self.sent)
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
    def batches_are_taken_in_the_order_of_their_records(self):
        waiting = [
            value
            for _, batch in sorted(self.taken.items())
            for value in (batch.values if not isinstance(batch, Encoded) else [batch.batch])
        ]
        assert waiting == sorted(waiting, key=int)


TestOutside = Outside.TestCase


def test_a_failure_gives_up_all_that_is_not_settled():
    outbox = Outbox(BATCHING, lambda: 0.0)
    for _ in range(7):
        outbox.add(b"", None, None, 0, 20)
    outbox.take()
    outbox.settle(0)
    lost = outbox.fail(SbpError("the disk is full"))
    assert [each.record_count for each in lost] == [2]
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
    with pytest.raises(DeadlineExceededError, match="not acknowledged after 1 ms"):
        delivery.result(timeout_ms=1)
    receipt.settle(10)
    assert (delivery.result(), found) == (13, [delivery])
    delivery.add_done_callback(found.append)
    assert len(found) == 2


def test_a_callback_that_raises_is_logged_and_holds_nothing_up(caplog):
    receipt, found = Receipt(), []
    receipt.on_settled(lambda: 1 / 0)
    receipt.on_settled(lambda: found.append(1))
    receipt.settle(-1, SbpError("no"))
    assert found == [1]
    assert "callback failed" in caplog.text
    with pytest.raises(SbpError, match="no"):
        Delivery(receipt, 0).result()
