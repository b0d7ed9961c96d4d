from __future__ import annotations

import contextlib
import json
from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st

from sbp_core.client import StoreCommit
from sbp_spark.reading.losses import Loss
from sbp_spark.reading.offsets import (
    INITIAL,
    CheckpointError,
    SourceOffset,
    StreamPosition,
    advance,
    intervals,
)

int64 = st.integers(0, 2**63 - 1)
WORD = "".join(map(chr, range(ord("!"), ord("~") + 1)))


@st.composite
def offsets(draw, min_size=0):
    positions, left_out = {}, {}
    for stream_id in draw(st.lists(int64, min_size=min_size, max_size=12, unique=True)):
        next_offset = draw(int64)
        base = draw(st.none() | st.integers(0, next_offset))
        kept = left_out if positions and draw(st.booleans()) else positions
        kept[stream_id] = StreamPosition(
            stream_id,
            draw(st.integers(-1, 2**63 - 1)),
            next_offset,
            base,
            *draw(st.tuples(*[st.none() | int64] * 2)),
        )
    lost = draw(st.lists(st.tuples(int64, int64, st.none() | int64), max_size=4))
    losses = {Loss(i, min(a, a if b is None else b), b) for i, a, b in lost}
    ordered = sorted(losses, key=lambda loss: (str(loss.stream_id), loss.start_offset))
    stalled = draw(st.dictionaries(int64, int64, max_size=4))
    commit = draw(st.none() | st.builds(StoreCommit, int64, st.text(WORD, min_size=1, max_size=32)))
    ordered = tuple(ordered)
    return SourceOffset(positions, lost=ordered, stalled=stalled, left_out=left_out, commit=commit)


def text(offset):
    return json.dumps(offset.to_json())


@given(offsets(), st.randoms())
def test_canonical_json_round_trips(offset, random):
    assert text(offset) == json.dumps(offset.to_json(), sort_keys=True)
    assert SourceOffset.from_json(json.loads(text(offset))) == offset
    shuffled = list(offset.streams.items())
    random.shuffle(shuffled)
    others = list(offset.stalled.items())
    random.shuffle(others)
    left = dict(reversed(offset.left_out.items()))
    again = replace(offset, streams=dict(shuffled), stalled=dict(others), left_out=left)
    assert text(again) == text(offset)


@given(offsets(), offsets())
def test_equal_text_means_equal_offsets(one, other):
    assert (text(one) == text(other)) == (one == other)


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(
            st.sampled_from(
                [
                    "streams",
                    "version",
                    "initial",
                    "created",
                    "next",
                    "base",
                    "end",
                    "target",
                    "lost",
                    "stalled",
                    "left_out",
                    "1",
                    "2",
                ]
            )
            | st.text(),
            inner,
            max_size=4,
        )
    ),
)


@given(
    json_values
    | st.fixed_dictionaries({"version": st.just(1), "streams": json_values})
    | st.fixed_dictionaries(
        {
            "version": st.just(1),
            "streams": st.just({}),
            "stalled": json_values | st.dictionaries(int64.map(str), json_values),
        }
    )
    | st.fixed_dictionaries(
        {"version": st.just(1), "streams": st.dictionaries(int64.map(str), json_values)}
    )
    | st.fixed_dictionaries(
        {
            "version": st.just(3),
            "streams": st.sampled_from(["", "1=2@3"]),
            "left_out": st.sampled_from(["", "1=2@3", "2=3"]) | json_values,
        }
    )
)
def test_any_json_gives_an_offset_or_a_checkpoint_error(value):
    with contextlib.suppress(CheckpointError):
        offset = SourceOffset.from_json(value)
        assert SourceOffset.from_json(json.loads(text(offset))) == offset


@given(st.text() | st.text("0123456789=@, ") | st.from_regex(r"[1-3]=[0-9]{1,2}@[0-9],base=[0-9]"))
def test_any_text_gives_itself_or_a_checkpoint_error(streams):
    with contextlib.suppress(CheckpointError):
        offset = SourceOffset.from_json({"version": 2, "streams": streams})
        entries = sorted(streams.split(), key=lambda entry: int(entry.split("=")[0]))
        assert offset.to_json()["streams"] == " ".join(entries)


@given(offsets(min_size=1), st.dictionaries(int64, int64))
def test_nothing_new_gives_the_text_of_the_start(start, stalled):
    ends = list(start.streams.values())
    assert text(advance(start, reversed(ends), stalled=stalled)) == text(start)


@given(
    st.dictionaries(int64, st.integers(0, 2**62), min_size=1, max_size=6),
    st.lists(st.lists(st.integers(0, 5), min_size=6, max_size=6), max_size=8),
    st.data(),
)
def test_batches_read_every_offset_once_whatever_is_replayed(bases, steps, data):
    """Run a query batch by batch through the checkpoint's text, with crashes before each."""
    read = {stream_id: base for stream_id, base in bases.items()}  # noqa: C416
    log = INITIAL
    for step in steps:
        ends = [
            StreamPosition(stream_id, 1, read[stream_id] + more, bases[stream_id])
            for (stream_id, more) in zip(sorted(bases), step, strict=False)
        ]
        end = advance(SourceOffset.from_json(json.loads(text(log))), ends)
        replays = [intervals(log, SourceOffset.from_json(json.loads(text(end)))) for _ in range(2)]
        assert replays[0] == replays[1]
        for stream_id, start_offset, end_offset in replays[0]:
            assert start_offset == read[stream_id]
            read[stream_id] = end_offset
        if data.draw(st.booleans(), label="committed") or log == INITIAL:
            log = end
        else:
            read = {stream_id: at.next_offset for stream_id, at in log.streams.items()}
