"""The checker finds what it is for: histories written by hand, a good one and bad ones."""

import contextlib
import time

import pytest

from sbp_core.records import with_base_offset
from tests.support.faults.checker import INVARIANTS, check
from tests.support.faults.endless_traffic import BATCH_RECORDS, Cursor, Ledger, batch_of
from tests.support.faults.workload import History, load_history

STREAM = 1
OTHER = 2


class Story:
    """A history of one stream in short notation."""

    def __init__(self, path=None):
        self.history = History(path)
        self.process = "writer-0"

    def append(self, records, end="ok", base_offset=0):
        number = self.history.invoke(self.process, "append", stream=STREAM, records=[*records])
        if end == "ok":
            self.history.ok(number, base_offset=base_offset)
        elif end == "fail":
            self.history.fail(number, "refused")
        elif end == "unknown":
            self.history.unknown(number, "lost")
        return self

    def read(self, offset, records, first=None):
        number = self.history.invoke("reader", "read", stream=STREAM, offset=offset)
        first = offset if first is None else first
        self.history.ok(number, records=[[at, name] for at, name in enumerate(records, first)])
        return self

    def commit(self, batch, parts, end="ok"):
        pairs = [[stream, [*records]] for stream, records in parts.items()]
        number = self.history.invoke(self.process, "commit", batch=batch, parts=pairs)
        getattr(self.history, end)(number, **({} if end == "ok" else {"error": "no"}))
        return self

    def end(self, records, start=0, next_offset=None, stream=STREAM):
        number = self.history.invoke("reader", "list", stream=stream)
        if records is None:
            self.history.fail(number, "not here")
            return self
        pairs = [[offset, record] for offset, record in enumerate(records, start)]
        end = start + len(pairs) if next_offset is None else next_offset
        self.history.ok(number, start=start, next=end, records=pairs)
        return self

    def keep(self):
        self.history.ok(self.history.invoke("auditor", "keep", stream=STREAM, bytes=1))
        return self

    def trim(self, offset, end="ok"):
        number = self.history.invoke("trimmer", "trim", stream=STREAM, offset=offset)
        getattr(self.history, end)(number, **({} if end == "ok" else {"error": "no"}))
        return self

    def ranges(self, *ranges):
        number = self.history.invoke("reader", "ranges", stream=STREAM)
        self.history.ok(number, ranges=[list(each) for each in ranges])
        return self

    def by(self, process):
        self.process = process
        return self

    def found(self):
        return {anomaly.kind for anomaly in check(self.history.operations())}


def good():
    """A bit of everything that may happen."""
    return (
        Story()
        .append("ab", base_offset=0)
        .append("cd", "unknown")
        .append("e", "fail")
        .append("xy", "unknown")
        .append("z", end=None)
        .ranges((0, 0, None))
        .read(0, "abc")
        .by("writer-1")
        .append("fg", base_offset=4)
        .read(3, "dfg")
        .trim(1)
        .trim(5, "unknown")
        .trim(9, "fail")
        .ranges((0, 0, 4), (1, 4, None))
        .ranges((0, 0, 4), (1, 4, 6), (2, 6, None))
        .ranges((1, 4, 6), (2, 6, None))
    )


@pytest.mark.parametrize(
    ("start", "rest"), [(1, "bcdfg"), (3, "dfg"), (5, "g"), (5, "gz"), (1, "bcdfgxyz")]
)
def test_a_good_history_has_no_anomaly(start, rest):
    story = good().end(rest, start)
    assert check(story.history.operations()) == []


def test_records_that_need_not_be_kept_may_be_missing():
    story = Story().keep().append("ab").append("cd", base_offset=2).end("d", 3)
    assert check(story.history.operations()) == []


@pytest.mark.parametrize("second", ["c", "cd"])
def test_committed_records_are_there_and_those_in_doubt_may_be(second):
    story = Story().commit(0, {STREAM: "ab", OTHER: "c"}).commit(1, {OTHER: "d"}, "unknown")
    story.end("ab").end(second, stream=OTHER)
    assert check(story.history.operations()) == []


BAD = {
    "committed, and not there": (Story().commit(0, {STREAM: "ab"}).end(""), {"half-committed"}),
    "committed, and there in part": (
        Story().commit(0, {STREAM: "ab"}).end("a"),
        {"half-committed"},
    ),
    "committed, with another record in its middle": (
        Story().commit(0, {STREAM: "ab"}).append("x", base_offset=1).end("axb"),
        {"half-committed"},
    ),
    "in doubt, and in one of its streams": (
        Story().commit(0, {STREAM: "a", OTHER: "b"}, "unknown").end("a").end("", stream=OTHER),
        {"half-committed"},
    ),
    "read as two records, and trimmed since": (
        Story()
        .append("a", "unknown")
        .append("b", "unknown")
        .append("c", base_offset=1)
        .read(0, "a")
        .read(0, "b")
        .trim(1)
        .end("c", 1),
        {"disagreeing"},
    ),
    "refused, and there all the same": (
        Story().commit(0, {STREAM: "a"}, "fail").end("a"),
        {"half-committed"},
    ),
    "one producer's batches the wrong way round": (
        Story().commit(0, {STREAM: "a"}).commit(1, {STREAM: "b"}).end("ba"),
        {"batches-reordered"},
    ),
    "the acknowledged tail is gone": (good().end("bcdf", 1), {"lost", "vanished"}),
    "an acknowledged batch was never there": (
        Story().append("ab").append("cd", base_offset=2).end("ab"),
        {"lost"},
    ),
    "another record has its place": (
        Story().append("ab").append("cd", "unknown").end("cd"),
        {"lost"},
    ),
    "it was never stored, and another one took its offset": (
        Story().append("a", base_offset=0).append("b", base_offset=0).end("b"),
        {"lost", "reordered"},
    ),
    "acknowledged once, there twice": (
        Story().append("ab").end("abab"),
        {"duplicated"},
    ),
    "unknown, there twice": (
        Story().append("a").append("b", "unknown").end("abb"),
        {"duplicated", "torn"},
    ),
    "refused and there": (Story().append("a").append("b", "fail").end("ab"), {"refused-present"}),
    "a part of a batch": (Story().append("a").append("bc", "unknown").end("ab"), {"torn"}),
    "the end of a batch": (Story().append("bc", "unknown").end("c"), {"torn"}),
    "a batch with another in its middle": (
        Story().append("bc", "unknown").append("a", base_offset=1).end("bac"),
        {"torn"},
    ),
    "a batch the wrong way round": (Story().append("bc", "unknown").end("cb"), {"torn"}),
    "a record that was never written": (Story().append("a").end("aq"), {"invented"}),
    "a record that was never written, read once": (
        Story().append("a").read(0, "q").end("a"),
        {"invented", "vanished"},
    ),
    "a read with a hole before it": (Story().append("ab").read(0, "b", first=1).end("ab"), {"gap"}),
    "a tail that is not there": (Story().append("a").end("a", next_offset=2), {"gap"}),
    "a record that can no longer be read": (
        Story().append("a").end("a").end(None),
        {"unreadable", "lost", "vanished"},
    ),
    "read, then gone": (
        Story().append("a", "unknown").read(0, "a").end(""),
        {"vanished"},
    ),
    "read, then at another offset": (
        Story().append("a", "unknown").append("b", "unknown").read(0, "ab").end("ba"),
        {"vanished"},
    ),
    "one writer's appends the wrong way round": (
        Story().append("a", base_offset=1).append("b", base_offset=0).end("ba"),
        {"reordered"},
    ),
    "trimmed records are back": (
        Story().append("abc").trim(2).end("abc"),
        {"trimmed-wrongly"},
    ),
    "more is gone than was asked for": (
        Story().append("abc").trim(1).end("c", 2),
        {"trimmed-wrongly"},
    ),
    "trimmed without a request": (Story().append("abc").end("bc", 1), {"trimmed-wrongly"}),
    "gone, though the newest record is kept": (
        Story().keep().append("abc").end("", 3),
        {"trimmed-wrongly"},
    ),
    "gone, and it was refused": (
        Story().append("abc").trim(2, "fail").end("c", 2),
        {"trimmed-wrongly"},
    ),
    "a sealed range that grew": (
        Story().ranges((0, 0, 3), (1, 3, None)).ranges((0, 0, 4), (1, 4, None)).end(""),
        {"ranges-moved"},
    ),
    "a sealed range that is open again": (
        Story().ranges((0, 0, 3)).ranges((0, 0, None)).end(""),
        {"ranges-moved"},
    ),
    "ranges with a gap": (Story().ranges((0, 0, 3), (1, 4, None)).end(""), {"ranges-moved"}),
    "a range that is missing": (Story().ranges((0, 0, 3), (2, 3, None)).end(""), {"ranges-moved"}),
}


@pytest.mark.parametrize("name", BAD)
def test_a_bad_history_is_called_by_its_names(name):
    story, kinds = BAD[name]
    assert story.found() == kinds


def test_each_invariant_has_a_history_that_breaks_it():
    broken = {
        invariant
        for story, _ in BAD.values()
        for invariant in INVARIANTS
        if invariant(story.history.operations())
    }
    assert broken == set(INVARIANTS)


def test_streams_that_were_written_and_never_listed_are_no_good_history():
    with pytest.raises(AssertionError, match="never listed"):
        check(Story().append("a").history.operations())


def test_a_history_reads_back_from_its_file(tmp_path):
    story = Story(tmp_path / "history.jsonl").append("ab").append("c", end=None).end("ab")
    story.history.fault("something")
    operations = load_history(tmp_path / "history.jsonl")
    assert operations == story.history.operations()
    assert [(each.action, each.end) for each in operations] == [
        ("append", "ok"),
        ("append", "unknown"),
        ("list", "ok"),
        ("fault", "ok"),
    ]


BATCHES = {"first": (0, 0), "second": (0, BATCH_RECORDS), "other": (1, 0)}
"""Writer and first number."""


@pytest.mark.parametrize(
    ("names", "found"),
    [
        (["first", "other", "second"], None),
        (["other", "second"], "lost or reordered"),
        (["first", "second", "first"], "doubled or reordered"),
        (["first", None, "second"], "gap"),
    ],
)
def test_a_reader_of_endless_traffic_finds_what_is_wrong(names, found):
    payload = b""
    for at, name in enumerate(names):
        if name is not None:
            batch = batch_of(*BATCHES[name], STREAM)
            payload += b"".join(with_base_offset(memoryview(batch), at * BATCH_RECORDS))
    cursor = Cursor(STREAM)
    with contextlib.nullcontext() if found is None else pytest.raises(AssertionError, match=found):
        cursor.read(memoryview(payload))
        assert cursor.position == len(names) * BATCH_RECORDS


def test_readers_and_writers_of_endless_traffic_are_compared():
    ledger = Ledger()
    ledger.on_digest(STREAM, 1_000, 7)
    with pytest.raises(AssertionError):
        ledger.on_digest(STREAM, 1_000, 8)
    ledger.on_batch(0, STREAM, 0, offset=50)
    with pytest.raises(AssertionError):
        ledger.on_acknowledged(0, STREAM, 0, time.monotonic())
