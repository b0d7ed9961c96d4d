"""FETCH answers are cut right, with and without `next_offset`; whatever else comes is an error."""

from hypothesis import given
from hypothesis import strategies as st

from sbp_core.client.operations.fetch_answer import Question, read_answer
from sbp_core.errors import SbpError
from sbp_core.wire.frame import Frame
from sbp_core.wire.headers import FetchResponse, FetchResult, Status, encode_header
from sbp_core.wire.opcodes import Flag, Opcode
from tests.support.data.batches import sequence_batch

OK, FAILED = Status(), Status(1462)
BODY = st.binary(max_size=20) | st.just(b"\x22" * 30)
BATCH = st.lists(BODY, min_size=1, max_size=4)
ITEM = st.lists(BATCH, max_size=4) | st.just(None)


def batches_of(bodies, start, *, is_rust):
    """Record sequences from an offset on, and the offset behind them."""
    made = []
    for values in bodies:
        delta = len(values) if is_rust else len(values) - 1
        made.append(sequence_batch(values, delta=delta, base_offset=start))
        start += len(values)
    return made, start


@given(
    items=st.lists(st.tuples(ITEM, st.integers(0, 2**40)), min_size=1, max_size=6),
    is_rust=st.booleans(),
    tells_next=st.booleans(),
)
def test_every_item_gets_its_own_batches(items, is_rust, tells_next):
    results, payload, expected = [], [], {}
    for index, (bodies, start) in enumerate(items):
        if bodies is None:
            results.append(FetchResult(-1, index, 0, FAILED))
            expected[index] = FAILED.code
            continue
        made, next_offset = batches_of(bodies, start, is_rust=is_rust)
        data = b"".join(made)
        told = next_offset if tells_next else -1
        results.append(FetchResult(index, index, len(made), OK, len(data), told))
        payload.append(data)
        expected[index] = data, next_offset
    header = encode_header(FetchResponse(0, tuple(results), OK))
    frame = Frame(Opcode.FETCH, Flag.RESPONSE | Flag.END, 1, header, b"".join(payload))
    questions = {index: Question(index, start) for index, (_, start) in enumerate(items)}
    answers = read_answer(frame, questions)
    assert {
        index: each.code if isinstance(each, SbpError) else (bytes(each.payload), each.next_offset)
        for index, each in answers.items()
    } == expected


@given(
    results=st.lists(
        st.builds(
            FetchResult,
            stream_id=st.integers(-1, 3),
            request_index=st.integers(-1, 3),
            batch_count=st.integers(-(2**31), 2**31 - 1) | st.integers(0, 3),
            status=st.sampled_from([None, OK, FAILED]),
            batch_length=st.integers(-(2**31), 2**31 - 1) | st.integers(-1, 200),
            next_offset=st.integers(-(2**63), 2**63 - 1) | st.just(-1),
        ),
        max_size=4,
    ),
    whole=st.lists(BATCH, max_size=3),
    damage=st.lists(st.tuples(st.integers(0, 300), st.integers(0, 255)), max_size=3),
    status=st.sampled_from([None, OK]),
)
def test_whatever_a_server_says_is_an_answer_or_an_error(results, whole, damage, status):
    payload = bytearray(b"".join(batches_of(whole, 0, is_rust=True)[0]))
    for position, byte in damage:
        if position < len(payload):
            payload[position] = byte
    header = encode_header(FetchResponse(0, tuple(results), status))
    frame = Frame(Opcode.FETCH, Flag.RESPONSE | Flag.END, 1, header, payload)
    try:
        answers = read_answer(frame, {index: Question(index, 0) for index in range(3)})
    except SbpError:
        return
    for answer in answers.values():
        assert isinstance(answer, SbpError) or len(answer.payload) <= len(payload)
