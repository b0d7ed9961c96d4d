"""Idempotent producers whose gateways die, change, or lose answers: each batch is stored once."""

import asyncio
from collections import deque
from contextlib import suppress

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sbp_core import limits
from sbp_core.client.operations.numbering import begin_numbering
from sbp_core.client.types import AppendItem, AppendOutcome, FetchOutcome, ReceivedBatches
from sbp_core.errors import (
    ConnectError,
    DeadlineExceededError,
    InvalidRequestError,
    OffsetOutOfRangeError,
    PermissionDeniedError,
    WriterGapError,
    WriterRepeatError,
    WriterUnknownError,
    invalid,
)
from sbp_core.kafka.producers import (
    BATCHES_KEPT,
    EPOCH_MAX,
    Producer,
    Producers,
    Sequence,
    origin_of,
)
from sbp_core.records.envelope import encode_envelope
from tests.support.clock import examples

STREAM, PRODUCER, EPOCH = 7, 5, 0
KEPT = limits.WRITER_BATCHES_KEPT


class Stream:
    """A stream as its server keeps it, for the batches of one writer."""

    def __init__(self):
        self.batches = []

    def append(self, number, batch):
        """Append a batch, or find it; return its offset."""
        count = len(self.batches)
        if number < count - KEPT:
            raise WriterRepeatError.of("long ago")
        if number < count:
            if self.batches[number] != batch:
                raise invalid("other content", number.to_bytes(8, "big"))
            return number
        if not count and number:
            raise WriterUnknownError.of("no batch yet")
        if number > count:
            raise WriterGapError(
                WriterGapError.codes[0], "a gap", detail=WriterGapError.encode_expected(count)
            )
        self.batches.append(batch)
        return count


class Client:
    """A client whose requests get lost, or late, or whose answers are lost, as `fates` say."""

    def __init__(self, stream):
        self.stream = stream
        self.fates = deque()
        self.late = []
        self.refusal = None

    async def append(self, items, *, writer):
        (item,) = items
        numbering = begin_numbering(writer, None)
        in_doubt, is_complete = [], False
        try:
            numbering.add(items)
            in_doubt = [0]
            number = numbering.marks(0, None).sequence
            fate = self.fates.popleft() if self.fates else "done"
            if fate == "after late ones":
                self.arrive()
            if fate == "late":
                self.late.append((number, item.batch))
            if fate in {"late", "lost"}:
                raise DeadlineExceededError("no answer")
            try:
                offset = self.stream.append(number, item.batch)
            except (InvalidRequestError, WriterGapError, WriterUnknownError):
                in_doubt = []
                raise
            if fate == "unheard":
                raise DeadlineExceededError("no answer")
            outcome = AppendOutcome(STREAM, offset, 0)
            numbering.on_appended(0, outcome)
            in_doubt, is_complete = [], True
            return [outcome]
        finally:
            numbering.end(in_doubt, is_complete=is_complete)

    async def fetch(self, items, *, max_wait_ms):
        """Give the batch at an offset, which is its number, unless the answer is lost."""
        (item,) = items
        fate = self.fates.popleft() if self.fates else "done"
        batch = self.stream.batches[item.fetch_offset] if fate == "done" else b""
        payload = ReceivedBatches(memoryview(batch), item.end_offset)
        yield FetchOutcome(0, STREAM, payload, self.refusal)

    def arrive(self):
        """Let requests arrive that were late; nobody hears the answers."""
        late, self.late = self.late, []
        for each in late:
            with suppress(InvalidRequestError, WriterGapError, WriterUnknownError):
                self.stream.append(*each)


def batch_of(first, count):
    sequence = Sequence(first, count)
    origin = origin_of(PRODUCER, EPOCH, sequence)
    batch = encode_envelope(
        [b"records"],
        stream_id=STREAM,
        record_count=count,
        base_timestamp_ms=1,
        encoding="rows",
        origin=origin,
    )
    return AppendItem(STREAM, batch), sequence


def name(producer=PRODUCER):
    return f"kafka-{producer:x}-{EPOCH}"


FATES = st.sampled_from(["done"] * 4 + ["lost", "unheard", "late", "after late ones"])
COUNTS = st.lists(st.integers(1, 3), min_size=1, max_size=20)
STEPS = (
    st.tuples(st.just("send"), st.integers(1, BATCHES_KEPT), st.lists(FATES, max_size=12)),
    st.tuples(st.just("move"), st.integers(0, 1)),
    st.tuples(st.just("kill"), st.integers(0, 1)),
    st.tuples(st.just("arrive")),
)
OVERTAKE = st.tuples(st.just("overtake"), st.integers(1, BATCHES_KEPT - 1), st.integers(0, 1))


@given(counts=COUNTS, steps=st.lists(st.one_of(*STEPS, OVERTAKE), max_size=30))
@settings(max_examples=examples(300))
def test_each_batch_is_stored_once_and_in_order_whichever_gateways_it_comes_through(counts, steps):
    """The producer has some batches under way, and sends all again from the first that failed.

    Those that overtake come to a gateway while the earlier ones are under way through another.
    """
    check_order(counts, steps)


@given(counts=COUNTS, steps=st.lists(st.one_of(*STEPS), max_size=30))
@settings(max_examples=examples(300))
def test_a_producer_that_may_not_read_keeps_its_order_if_no_batch_overtakes(counts, steps):
    check_order(counts, steps, PermissionDeniedError.of("may only append"))


def check_order(counts, steps, refusal=None):
    batches, first = [], 0
    for count in counts:
        batches.append(batch_of(first, count))
        first += count
    stream = Stream()
    client = Client(stream)
    client.refusal = refusal
    gateways = [Producer(name()), Producer(name())]
    acknowledged, current = [], 0

    async def send(window, to, skipped=0):
        has_failed = skipped > 0
        for item, sequence in batches[len(acknowledged) :][skipped:window]:
            try:
                offset = await gateways[to].append(client, item, sequence)
            except (ConnectError, DeadlineExceededError):
                has_failed = True
            except (WriterGapError, WriterUnknownError):
                assert has_failed, "refused although all batches before are acknowledged"
            else:
                assert stream.batches[offset] == item.batch
                if not has_failed:
                    acknowledged.append(offset)

    async def main():
        nonlocal current
        for step in [*steps, ("arrive",)]:
            match step:
                case ("send", window, fates):
                    client.fates = deque(fates)
                    await send(window, current)
                    client.fates.clear()
                case ("overtake", skipped, to):
                    await send(BATCHES_KEPT, to, skipped)
                case ("move", to):
                    current = to
                case ("kill", at):
                    gateways[at] = Producer(name())
                case ("arrive",):
                    client.arrive()
            expected = [item.batch for item, _ in batches]
            assert stream.batches == expected[: len(stream.batches)]
        while len(acknowledged) < len(batches):
            await send(BATCHES_KEPT, current)

    asyncio.run(main())
    assert stream.batches == [item.batch for item, _ in batches]
    assert acknowledged == list(range(len(batches)))


def run(body):
    asyncio.run(body())


def test_a_batch_behind_a_gap_is_refused_by_a_gateway_that_knows_the_producer():
    async def body():
        client, producer = Client(Stream()), Producer(name())
        await producer.append(client, *batch_of(0, 2))
        with pytest.raises(WriterGapError):
            await producer.append(client, *batch_of(3, 1))
        assert await producer.append(client, *batch_of(2, 1)) == 1

    run(body)


def test_a_batch_that_overtakes_is_refused_by_a_gateway_that_does_not_know_the_producer():
    async def body():
        client, producer = Client(Stream()), Producer(name())
        await producer.append(client, *batch_of(0, 2))
        other = Producer(name())
        with pytest.raises(WriterGapError):
            await other.append(client, *batch_of(3, 1))
        assert await producer.append(client, *batch_of(2, 1)) == 1
        assert await other.append(client, *batch_of(3, 1)) == 2

    run(body)


@pytest.mark.parametrize(
    "refusal", [PermissionDeniedError.of("may only append"), OffsetOutOfRangeError.of("trimmed")]
)
def test_a_producer_whose_last_batch_cannot_be_read_goes_on(refusal):
    async def body():
        client = Client(Stream())
        await Producer(name()).append(client, *batch_of(0, 2))
        client.refusal = refusal
        assert await Producer(name()).append(client, *batch_of(2, 1)) == 1

    run(body)


def test_a_batch_of_long_ago_is_refused():
    async def body():
        client, producer = Client(Stream()), Producer(name())
        for first in range(KEPT + 2):
            await producer.append(client, *batch_of(first, 1))
        for gateway in (producer, Producer(name())):
            with pytest.raises((WriterGapError, WriterRepeatError)):
                await gateway.append(client, *batch_of(0, 1))
        assert len(client.stream.batches) == KEPT + 2

    run(body)


def test_a_batch_that_is_encoded_anew_may_follow_one_in_doubt():
    async def body():
        client, producer = Client(Stream()), Producer(name())
        await producer.append(client, *batch_of(0, 1))
        item, sequence = batch_of(1, 1)
        client.fates.append("lost")
        with pytest.raises(DeadlineExceededError):
            await producer.append(client, item, sequence)
        again = AppendItem(STREAM, b"by the new schema")
        assert await producer.append(client, again, sequence) == 1
        assert client.stream.batches[1:] == [again.batch]

    run(body)


def test_a_sequence_of_a_producer_that_the_stream_does_not_know_is_refused():
    async def body():
        client = Client(Stream())
        with pytest.raises(WriterUnknownError):
            await Producer(name()).append(client, *batch_of(5, 1))
        assert client.stream.batches == []

    run(body)


def test_sequences_begin_again_after_the_largest_one():
    async def body():
        client, producer = Client(Stream()), Producer(name())
        await producer.append(client, *batch_of(0, 1))
        producer.next_sequence = 2**31 - 2
        await producer.append(client, *batch_of(2**31 - 2, 3))
        assert await producer.append(client, *batch_of(1, 1)) == 2

    run(body)


def test_a_producer_that_is_forgotten_goes_on():
    async def body():
        client, known = Client(Stream()), Producers(2)
        first = known.get(STREAM, PRODUCER, EPOCH)
        await first.append(client, *batch_of(0, 1))
        for other in range(10, 13):
            known.get(STREAM, other, EPOCH)
        again = known.get(STREAM, PRODUCER, EPOCH)
        assert again is not first
        assert await again.append(client, *batch_of(1, 1)) == 1

    run(body)


def test_epochs_end_before_those_of_kafka():
    assert EPOCH_MAX < 2**15 - 1
