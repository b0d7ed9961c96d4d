"""The view of `sbp top`."""

from __future__ import annotations

from dataclasses import replace

from rich.console import Console

from sbp_core.cli.top import drawn, make_top
from sbp_core.client import ClusterInfo, RangeServerInfo, StreamInfo
from sbp_core.operating.samples import Ends, Lags, Samples

SERVER = RangeServerInfo(1, "a:1", None, True, 5 * 2**30, 2, 1, 5, 2, 0)
NAMES = ("quiet", "busy", "down")


def sampled() -> Samples:
    """Four streams: 2 has 100 records/s and 1 000 bytes/s, where 3 ends is not known."""
    samples = Samples(streams=[StreamInfo(each, name, 1, 0, 0) for each, name in enumerate(NAMES)])
    samples.starts = dict.fromkeys(range(4), 10)
    samples.note(Ends.of(1_000, {0: 30, 1: 110, 2: None, 3: 50}))
    samples.note(Ends.of(3_000, {0: 30, 1: 310, 2: None, 3: 90}))
    samples.note_sizes(1_000, {0: 500, 1: 1_000, 3: 9})
    samples.note_sizes(3_000, {0: 500, 1: 3_000, 3: 99})
    samples.note_lags(Lags.of(3_000, {("slow", 1): 40, ("quick", 1): 2, ("slow", 0): 1}))
    return samples


def test_the_busiest_stream_is_first_and_what_is_unknown_is_no_number():
    view = make_top(sampled(), None)
    assert [each.cells() for each in view.streams] == [
        ("busy", "300", "100", "1000 B", "2.9 KiB", "40", "slow"),
        ("quiet", "20", "0", "0 B", "500 B", "1", "slow"),
        ("down", "-", "-", "-", "-", "-", "-"),
    ]
    assert view.servers == ()


def test_sums_are_of_the_streams_that_are_shown():
    view = make_top(sampled(), None)
    assert (view.records, view.records_per_second, view.bytes_per_second) == (320, 100, 1_000)
    assert (view.stored_bytes, view.lag) == (3_500, 43)
    assert view.summary == "3 streams, 320 records, 3.4 KiB; 100 records/s, 1000 B/s; lag 43"


def test_nothing_is_known_before_the_first_sample():
    view = make_top(Samples(), None)
    assert view.summary == "0 streams, - records, -; - records/s, -/s; lag -"


def test_a_terminal_shows_all_servers_and_the_streams_that_fit():
    gone = replace(SERVER, server_id=2, is_retired=True)
    view = make_top(sampled(), ClusterInfo([SERVER, gone], 0, 0))
    console = Console(width=100, height=8)
    with console.capture() as shown:
        console.print(drawn(view, "a title\x1b[2J", console.height))
    title, _, servers, server, _, streams, *rest = shown.get().splitlines()
    assert title.strip() == "a title\\x1b[2J"
    assert servers.split()[:2] == ["SERVER", "ENDPOINT"]
    assert server.split() == ["1", "a:1", "live", "5.0", "GiB", "2", "1", "5"]
    assert streams.split()[0] == "STREAM"
    assert [each.split()[0] for each in rest] == ["busy", "quiet"]
