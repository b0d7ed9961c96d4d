"""Invariants of a history under any faults of the servers: one pure function each.

Each takes the operations of a history and returns the anomalies that it finds. A stream's truth is
the last `list` of it, made after all faults were over.
"""

from __future__ import annotations

import itertools
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from tests.support.faults.workload import Operation

Operations = Sequence[Operation]

SHOWN_MAX = 20


@dataclass(frozen=True, slots=True)
class Anomaly:
    """A promise that was broken, by its name."""

    kind: str
    what: str


@dataclass(frozen=True, slots=True)
class Content:
    """The final content of a stream: [start, next) and the record at each offset."""

    start: int
    next: int
    records: dict[int, str]


def lost(operations: Operations) -> list[Anomaly]:
    """Acknowledged records are present at their offsets, unless they were trimmed."""
    contents = final_contents(operations)
    anomalies = []
    for append in chosen(operations, "append", "ok"):
        content = contents[append.request["stream"]]
        for offset, record in placed(append):
            if offset >= content.start and content.records.get(offset) != record:
                found = content.records.get(offset, "nothing")
                what = f"{record} was acknowledged at {where(append, offset)}, there is {found}"
                anomalies.append(Anomaly("lost", what))
    return anomalies


def duplicated(operations: Operations) -> list[Anomaly]:
    """No record is there twice."""
    places = defaultdict(list)
    for stream, content in final_contents(operations).items():
        for offset, record in content.records.items():
            places[record].append((stream, offset))
    return [
        Anomaly("duplicated", f"{record} is there {len(at)} times, as (stream, offset) {at}")
        for record, at in places.items()
        if len(at) > 1
    ]


def refused_present(operations: Operations) -> list[Anomaly]:
    """Records of a refused append are absent."""
    return [
        Anomaly("refused-present", f"{record} was refused and is at {where(append, offset)}")
        for append, offset, record in present(operations, "fail")
    ]


def torn(operations: Operations) -> list[Anomaly]:
    """A batch whose outcome is unknown is there whole, in one piece, or not at all."""
    found = defaultdict(list)
    for append, offset, record in present(operations, "unknown"):
        found[append.number].append((offset, record))
    anomalies = []
    by_number = {append.number: append for append in chosen(operations, "append", "unknown")}
    starts = {stream: content.start for stream, content in final_contents(operations).items()}
    for number, pairs in found.items():
        append = by_number[number]
        records = append.request["records"]
        first_offset = pairs[0][0] - records.index(pairs[0][1])
        start = starts[append.request["stream"]]
        expected = [
            (offset, record)
            for offset, record in enumerate(records, first_offset)
            if not 0 <= offset < start
        ]
        if sorted(pairs) != expected:
            anomalies.append(Anomaly("torn", f"of {records} there is only {pairs}"))
    return anomalies


def invented(operations: Operations) -> list[Anomaly]:
    """Nothing is there, or was ever read, that was not written to that stream."""
    written = defaultdict(set)
    for append in chosen(operations, "append"):
        written[append.request["stream"]].update(append.request["records"])
    for commit in chosen(operations, "commit"):
        for stream, records in commit.request["parts"]:
            written[stream].update(records)
    return [
        Anomaly("invented", f"{record} at {where(reading, offset)} was not written there")
        for reading in [*chosen(operations, "read", "ok"), *chosen(operations, "list", "ok")]
        for offset, record in reading.answer["records"]
        if record not in written[reading.request["stream"]]
    ]


def unreadable(operations: Operations) -> list[Anomaly]:
    """At the end every stream can be read."""
    last = {listing.request["stream"]: listing for listing in chosen(operations, "list")}
    return [
        Anomaly("unreadable", f"stream {stream}: {listing.answer.get('error', 'no answer')}")
        for stream, listing in last.items()
        if listing.end != "ok"
    ]


def gaps(operations: Operations) -> list[Anomaly]:
    """Offsets follow one another, in each read and over all that there is."""
    anomalies = []
    for reading in chosen(operations, "read", "ok"):
        offsets = [offset for offset, _ in reading.answer["records"]]
        first = reading.request["offset"]
        if offsets != list(range(first, first + len(offsets))):
            anomalies.append(Anomaly("gap", f"read from {where(reading, first)}: {offsets}"))
    for listing in chosen(operations, "list", "ok"):
        start, end = listing.answer["start"], listing.answer["next"]
        offsets = [offset for offset, _ in listing.answer["records"]]
        if offsets != list(range(start, end)):
            what = f"stream {listing.request['stream']} is [{start}, {end}) and holds {offsets}"
            anomalies.append(Anomaly("gap", what))
    return anomalies


def vanished(operations: Operations) -> list[Anomaly]:
    """A record that was read once stays readable at the same offset."""
    contents = final_contents(operations)
    anomalies = []
    for reading in [*chosen(operations, "read", "ok"), *chosen(operations, "list", "ok")]:
        content = contents[reading.request["stream"]]
        for offset, record in reading.answer["records"]:
            if offset >= content.start and content.records.get(offset) != record:
                found = content.records.get(offset, "nothing")
                what = f"{record} was read at {where(reading, offset)}, now there is {found}"
                anomalies.append(Anomaly("vanished", what))
    return anomalies


def disagreeing(operations: Operations) -> list[Anomaly]:
    """All reads show the same record at an offset that is trimmed since; see `vanished`."""
    contents = final_contents(operations)
    anomalies = []
    seen: dict[tuple[int, int], str] = {}
    for reading in chosen(operations, "read", "ok"):
        for offset, record in reading.answer["records"]:
            if offset >= contents[reading.request["stream"]].start:
                continue
            first = seen.setdefault((reading.request["stream"], offset), record)
            if record != first:
                what = f"{first} and {record} were both read at {where(reading, offset)}"
                anomalies.append(Anomaly("disagreeing", what))
    return anomalies


def reordered(operations: Operations) -> list[Anomaly]:
    """Successive appends of a writer to a stream keep their order."""
    anomalies = []
    last: dict[tuple[str, int], Operation] = {}
    for append in chosen(operations, "append", "ok"):
        key = (append.process, append.request["stream"])
        before = last.get(key)
        if before is not None and before.answer["base_offset"] >= append.answer["base_offset"]:
            what = f"{append.request['records'][0]} stands before {before.request['records'][0]}"
            anomalies.append(Anomaly("reordered", what))
        last[key] = append
    return anomalies


def trimmed_wrongly(operations: Operations) -> list[Anomaly]:
    """A stream starts at or after each trim that was acknowledged, and at none that was not asked.

    A trim whose outcome is unknown may have been done. A stream with a limit on its size keeps its
    newest record.
    """
    anomalies = []
    kept_in_part = {keep.request["stream"] for keep in chosen(operations, "keep")}
    for stream, content in final_contents(operations).items():
        trims = [trim for trim in chosen(operations, "trim") if trim.request["stream"] == stream]
        done = max((trim.request["offset"] for trim in trims if trim.end == "ok"), default=0)
        asked = max((trim.request["offset"] for trim in trims if trim.end != "fail"), default=0)
        if stream in kept_in_part:
            asked = max(asked, content.next - 1)
        if not done <= content.start <= asked:
            what = (
                f"stream {stream} starts at {content.start}; it was trimmed to {done}, and asked"
                f" to be trimmed to {asked} at most"
            )
            anomalies.append(Anomaly("trimmed-wrongly", what))
    return anomalies


def ranges_moved(operations: Operations) -> list[Anomaly]:
    """A range begins where the one before it ends, and a sealed one ends there for ever."""
    anomalies = []
    ends: dict[tuple[int, int], int] = {}
    for listing in chosen(operations, "ranges", "ok"):
        stream = listing.request["stream"]
        ranges = listing.answer["ranges"]
        for (index, _, end), (after, start, _) in itertools.pairwise(ranges):
            if (end, index + 1) != (start, after):
                what = f"range {index} of stream {stream} ends at {end}, {after} starts at {start}"
                anomalies.append(Anomaly("ranges-moved", what))
        for index, _, end in ranges:
            known = ends.get((stream, index))
            if known is not None and known != end:
                what = f"range {index} of stream {stream} ended at {known}, later at {end}"
                anomalies.append(Anomaly("ranges-moved", what))
            elif end is not None:
                ends[stream, index] = end
    return anomalies


def half_committed(operations: Operations) -> list[Anomaly]:
    """A committed batch is there, of one in doubt all or nothing; in one piece in each stream."""
    anomalies = []
    for commit in chosen(operations, "commit"):
        pieces = piece_offsets(operations, commit)
        name = f"batch {commit.request['batch']} of {commit.process}, which ended {commit.end}"
        for stream, offsets in pieces.items():
            if len(set(offsets)) > 1 and offsets != sequence(offsets):
                anomalies.append(Anomaly("half-committed", f"{name}: {offsets} in {stream}"))
        are_there = {offsets[0] is not None for offsets in pieces.values()}
        if len(are_there) > 1 or (commit.end == "ok" and are_there != {True}):
            anomalies.append(Anomaly("half-committed", f"{name}: {pieces}"))
        if commit.end == "fail" and are_there != {False}:
            anomalies.append(Anomaly("half-committed", f"{name} is there: {pieces}"))
    return anomalies


def batches_reordered(operations: Operations) -> list[Anomaly]:
    """A producer's batches stand in the order of their numbers in each stream."""
    anomalies = []
    last: dict[tuple[str, int], int] = {}
    for commit in sorted(chosen(operations, "commit"), key=lambda each: each.request["batch"]):
        for stream, offsets in piece_offsets(operations, commit).items():
            if offsets[0] is None:
                continue
            key = (commit.process, stream)
            if offsets[0] < last.get(key, -1):
                what = f"batch {commit.request['batch']} of {commit.process} in stream {stream}"
                anomalies.append(Anomaly("batches-reordered", what))
            last[key] = offsets[0]
    return anomalies


INVARIANTS: tuple[Callable[[Operations], list[Anomaly]], ...] = (
    lost,
    duplicated,
    refused_present,
    torn,
    invented,
    unreadable,
    gaps,
    vanished,
    disagreeing,
    reordered,
    trimmed_wrongly,
    ranges_moved,
    half_committed,
    batches_reordered,
)


def check(operations: Operations) -> list[Anomaly]:
    """All anomalies of a history."""
    return [anomaly for invariant in INVARIANTS for anomaly in invariant(operations)]


def assert_sound(operations: Operations) -> None:
    """Fail with the first anomalies, if there are any."""
    anomalies = check(operations)
    shown = "\n".join(f"{each.kind}: {each.what}" for each in anomalies[:SHOWN_MAX])
    assert not anomalies, f"{len(anomalies)} anomalies, such as\n{shown}"


def chosen(operations: Operations, action: str, end: str | None = None) -> list[Operation]:
    """The operations of one kind, with one end."""
    return [each for each in operations if each.action == action and end in {None, each.end}]


def final_contents(operations: Operations) -> dict[int, Content]:
    """Return the final content of each stream in the history, by stream id."""
    contents = {}
    for listing in chosen(operations, "list"):
        answer = {"start": 0, "next": 0, "records": [], **listing.answer}
        content = Content(answer["start"], answer["next"], dict(answer["records"]))
        contents[listing.request["stream"]] = content
    touched = {each.request["stream"] for each in operations if "stream" in each.request}
    touched |= {
        stream for commit in chosen(operations, "commit") for stream, _ in commit.request["parts"]
    }
    assert touched <= contents.keys(), f"streams {touched - contents.keys()} were never listed"
    return contents


def placed(append: Operation) -> Iterator[tuple[int, str]]:
    """Each record of an acknowledged append and the offset that it was given."""
    return enumerate(append.request["records"], append.answer["base_offset"])


def present(operations: Operations, end: str) -> list[tuple[Operation, int, str]]:
    """Records of appends with this end that are there: append, offset and record."""
    writers = {
        record: append
        for append in chosen(operations, "append", end)
        for record in append.request["records"]
    }
    return [
        (writers[record], offset, record)
        for content in final_contents(operations).values()
        for offset, record in content.records.items()
        if record in writers
    ]


def piece_offsets(operations: Operations, commit: Operation) -> dict[int, list[int | None]]:
    """Where the records of a committed batch are in each of its streams, None where they are not.

    Streams that are committed to are never trimmed.
    """
    contents = final_contents(operations)
    pieces = {}
    for stream, records in commit.request["parts"]:
        at = {record: offset for offset, record in contents[stream].records.items()}
        pieces[stream] = [at.get(record) for record in records]
    return pieces


def sequence(offsets: list[int | None]) -> list[int] | None:
    """Return as many offsets from the first one on, without a gap; None if the first is None."""
    first = offsets[0]
    return None if first is None else list(range(first, first + len(offsets)))


def where(operation: Operation, offset: int) -> str:
    """A place, for messages."""
    return f"offset {offset} of stream {operation.request['stream']}"
