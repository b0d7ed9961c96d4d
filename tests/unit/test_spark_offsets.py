from __future__ import annotations

import json

import pytest

from sbp_core.client import StoreCommit, StreamInfo
from sbp_spark.reading.losses import Loss
from sbp_spark.reading.offsets import (
    CREATED_UNKNOWN,
    INITIAL,
    CheckpointError,
    Interval,
    SourceOffset,
    StreamChangedError,
    StreamPosition,
    advance,
    find_gone,
    intervals,
)

CREATED = 1_700_000_000_000


def at(stream_id, next_offset, base=None, created=CREATED):
    return StreamPosition(stream_id, created, next_offset, base)


def offset(*positions):
    return SourceOffset({position.stream_id: position for position in positions})


def text(source_offset):
    return json.dumps(source_offset.to_json())


def test_no_streams_yet_is_not_the_sentinel():
    assert text(advance(INITIAL, [])) == '{"streams": "", "version": 2}'
    assert SourceOffset.from_json({"streams": "", "version": 2}) == SourceOffset({}) != INITIAL


def test_the_json_form():
    ends = StreamPosition(18, CREATED_UNKNOWN, 7, end_offset=8, end_time_ms=10)
    assert text(offset(ends, at(17, 120, base=100))) == (
        '{"streams": "17=120@1700000000000,base=100 18=7,end=8,until=10", "version": 2}'
    )


def test_the_target_of_an_interrupted_run_is_read_and_not_kept():
    older = {"version": 2, "streams": "18=7,end=8,target=9,until=10"}
    assert text(SourceOffset.from_json(older)) == (
        '{"streams": "18=7,end=8,until=10", "version": 2}'
    )


def test_the_third_version_keeps_what_is_left_out_and_nothing_else_is_of_it():
    plain = '{"streams": "17=120@1700000000000", "version": 2}'
    assert text(SourceOffset.from_json(json.loads(plain))) == plain
    left = '{"left_out": "18=7@1700000000000", "streams": "17=120@1700000000000", "version": 3}'
    found = SourceOffset.from_json(json.loads(left))
    assert found.left_out == {18: at(18, 7)}
    assert text(found) == left == json.dumps(found.to_json(), sort_keys=True)


COMMIT = StoreCommit(7, "0-0123456789abcdef")


def test_a_commit_is_kept_and_is_no_news():
    start = SourceOffset({17: at(17, 120)}, commit=COMMIT)
    assert text(start) == (
        '{"store_commit": 7, "store_life": "0-0123456789abcdef",'
        ' "streams": "17=120@1700000000000", "version": 3}'
    )
    assert SourceOffset.from_json(json.loads(text(start))) == start
    later = StoreCommit(8, COMMIT.life)
    assert advance(start, [at(17, 120)], commit=later) is start
    assert advance(start, [at(17, 121)], commit=later).commit == later
    assert advance(start, [at(17, 121)]).commit == COMMIT
    plain = offset(at(17, 120))
    assert advance(plain, [at(17, 120)], commit=later) is plain


@pytest.mark.parametrize(
    "told",
    [
        {"store_commit": 7},
        {"store_life": "0-a"},
        {"store_commit": -1, "store_life": "0-a"},
        {"store_commit": 2**63, "store_life": "0-a"},
        {"store_commit": True, "store_life": "0-a"},
        {"store_commit": 1.0, "store_life": "0-a"},
        {"store_commit": "1", "store_life": "0-a"},
        {"store_commit": 1, "store_life": ""},
        {"store_commit": 1, "store_life": "0 a"},
        {"store_commit": 1, "store_life": "a" * 33},
        {"store_commit": 1, "store_life": None},
        {"store_commit": None, "store_life": None},
        {"left_out": ""},
        {"left_out": "1=2@3"},
        {"left_out": None},
    ],
)
def test_foreign_commits_and_left_out_streams_are_refused(told):
    with pytest.raises(CheckpointError, match="no offset of the sbp source"):
        SourceOffset.from_json({"streams": "1=2@3", "version": 3, **told})


@pytest.mark.parametrize("more", [{"left_out": "1=2@3"}, {"store_commit": 1, "store_life": "0-a"}])
def test_fields_of_version_three_are_refused_in_others(more):
    with pytest.raises(CheckpointError, match="the keys streams and version"):
        SourceOffset.from_json({"streams": "", "version": 2, **more})


def test_a_stream_that_was_left_out_is_read_from_where_it_was():
    start = SourceOffset({1: at(1, 5)}, left_out={2: at(2, 7), 3: at(3, 9)})
    end = SourceOffset({2: at(2, 8), 1: at(1, 5)}, left_out={3: at(3, 9)})
    assert intervals(start, end) == (Interval(1, 5, 5), Interval(2, 7, 8))
    anew = SourceOffset({2: at(2, 8, base=0, created=CREATED + 1)})
    assert intervals(start, anew) == (Interval(2, 0, 8),)
    assert advance(start, [at(1, 6)]).left_out == start.left_out


@pytest.mark.parametrize("version", [4, 1, 0, -1, "1", 1.0, True, None, []])
def test_other_versions_say_which_ones_are_read(version):
    with pytest.raises(CheckpointError, match=r"versions 2 and 3; run the release .* wrote it"):
        SourceOffset.from_json({"streams": {"1": {"created": 1, "next": 1}}, "version": version})


@pytest.mark.parametrize(
    "streams",
    [
        None,
        {},
        [],
        17,
        " ",
        "1",
        "1=",
        "=1",
        "1=2 ",
        " 1=2",
        "1=2  2=3",
        "1=2\n2=3",
        "1=2\n",
        "1=2,2=3",
        "1:2",
        "a=2",
        "01=2",
        "1=02",
        "+1=2",
        "-1=2",
        "1=-2",
        "1=2.0",
        "1=2@",
        "1=2@-1",
        "1=2@05",
        "1=2@5,",
        "1=2@5,stop=3",
        "1=2@5,base=",
        "1=2@5,base=-1",
        "1=2@5,base=3",
        "1=2@5,end=3,base=1",
        "1=2@5,base=1,base=1",
        "1=2 1=2",
        "٣=2",
        f"{2**63}=2",
        f"1={2**63}",
        f"1=2@{2**63}",
        f"1=2@5,until={2**63}",
        "9" * 5000 + "=1",
    ],
)
def test_foreign_texts_are_refused(streams):
    with pytest.raises(CheckpointError, match="no offset of the sbp source") as caught:
        SourceOffset.from_json({"streams": streams, "version": 2})
    assert "new checkpointLocation" in str(caught.value)
    assert len(str(caught.value)) < 500


@pytest.mark.parametrize(
    "value",
    [
        None,
        [],
        "x",
        5,
        {},
        {"orders": {"0": 23}},
        {"initial": True},
        {"initial": 1, "version": 2},
        {"streams": "1=7@5", "version": 2, "more": 0},
        {"version": 2},
        {"initial": False, "version": 2},
        {"initial": True, "streams": "1=7@5", "version": 2},
        {"streams": [], "version": 2},
        {"streams": "", "version": 2, "lost": []},
        {"streams": "", "version": 2, "lost": {}},
        {"streams": "", "version": 2, "lost": {"1": []}},
        {"streams": "", "version": 2, "lost": {"a": []}},
        {"streams": "", "version": 2, "lost": {"1": 5}},
        {"streams": "", "version": 2, "lost": {"1": [[5]]}},
        {"streams": "", "version": 2, "lost": {"1": [[None, 5]]}},
        {"streams": "", "version": 2, "lost": {"1": [[6, 5]]}},
        {"streams": "", "version": 2, "lost": {"1": [[0, 5.0]]}},
    ],
)
def test_foreign_offsets_are_refused(value):
    with pytest.raises(CheckpointError, match="no offset of the sbp source") as caught:
        SourceOffset.from_json(value)
    assert "new checkpointLocation" in str(caught.value)
    assert len(str(caught.value)) < 500


def test_streams_that_were_deleted_are_found():
    def created(times_ms):
        return {each: StreamInfo(each, None, 1, 0, time_ms) for each, time_ms in times_ms.items()}

    positions = [at(1, 8, created=5), at(2, 8, created=5), at(3, 8, created=CREATED_UNKNOWN)]
    assert find_gone(positions, created({1: 5, 2: 6, 3: 7})) == [positions[1]]
    assert find_gone(positions, created({1: CREATED_UNKNOWN, 3: 7})) == [positions[1]]
    assert find_gone(positions, {}) == positions


def test_an_unknown_creation_time_fits_any():
    known, unknown = offset(at(1, 8, created=5)), offset(at(1, 9, created=CREATED_UNKNOWN))
    assert intervals(known, unknown) == ((1, 8, 9),)
    assert advance(known, unknown.streams.values()) == offset(at(1, 9, created=5))
    with pytest.raises(StreamChangedError, match="backwards"):
        intervals(unknown, known)


def test_a_stream_that_is_left_out_is_read_no_further():
    assert intervals(offset(at(1, 8), at(2, 4)), offset(at(2, 5))) == ((2, 4, 5),)
    assert advance(offset(at(1, 8), at(2, 4)), [at(2, 4)]) == offset(at(2, 4))


def test_the_offset_names_lost_records_and_they_are_not_read():
    start = offset(at(1, 8), at(2, 4))
    lost = [Loss(1, 8, 20), Loss(9, 3, None)]
    end = advance(start, [at(1, 25), at(2, 5)], lost)
    assert text(end).startswith('{"lost": {"1": [[8, 20]], "9": [[3, null]]}, "streams": ')
    assert SourceOffset.from_json(json.loads(text(end))) == end
    assert intervals(start, end) == ((1, 20, 25), (2, 4, 5))
    assert text(advance(end, [at(1, 25), at(2, 5)])) == text(end)
    assert advance(end, [at(1, 26), at(2, 5)]).lost == ()


def test_a_loss_is_news_though_nothing_has_moved():
    start = offset(at(1, 8))
    assert advance(start, [at(1, 8)], [Loss(2, 0, None)]).lost == (Loss(2, 0, None),)


@pytest.mark.parametrize(
    "ends",
    [
        [at(1, 7)],
        [at(1, 8, created=CREATED + 1)],
        [at(1, 8, created=CREATED - 1)],
        [at(1, 9, created=CREATED - 1)],
        [at(1, 8), at(2, 5)],
        [at(1, 8), at(2, 5, base=6)],
    ],
)
def test_advance_refuses_what_intervals_would_refuse(ends):
    with pytest.raises(CheckpointError):
        advance(offset(at(1, 8)), ends)
