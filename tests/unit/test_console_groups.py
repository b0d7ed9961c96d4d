"""Consumer groups as the console shows them."""

from __future__ import annotations

from sbp_core.client import GroupInfo
from sbp_core.client.group_lag import Lag
from sbp_core.client.group_members import MemberInfo
from sbp_core.operating.samples import Lags, Samples
from sbp_core.web.console.charts import LINES_MAX
from sbp_core.web.console.groups_view import MemberRow, make_group, make_members, make_rows


def sampled(*records: dict[tuple[str, int], int]) -> Samples:
    samples = Samples()
    samples.lags.extend(Lags(1_000.0 * at, each, {}) for at, each in enumerate(records))
    return samples


def lag(
    stream_id: int, records: int | None, lag_ms: int | None = 0, *, committed_at_ms: int = 0
) -> Lag:
    name = f"s{stream_id}"
    return Lag(stream_id, 0, committed_at_ms, name, 0, 9, lag_records=records, lag_ms=lag_ms)


def test_groups_are_listed_with_their_lag_once_it_was_sampled():
    groups = [GroupInfo("billing", 5), GroupInfo("mail", 6)]
    rows = make_rows(groups, sampled({("billing", 1): 3, ("billing", 2): 4}), "")
    assert [(each.group, each.lag, each.stream_count) for each in rows] == [
        ("billing", 7, 2),
        ("mail", None, None),
    ]
    assert [each.group for each in make_rows(groups, Samples(), " MAI ")] == ["mail"]
    assert rows[0].path == "/groups/billing"


def test_the_longest_time_is_not_known_if_that_of_a_stream_is_not():
    known = make_group("g", [lag(1, 2, 500), lag(2, 0), lag(3, None, None)], Samples(), 0)
    assert (known.records, known.longest_ms) == (2, 500)
    assert make_group("g", [lag(1, 2, 500), lag(2, 1, None)], Samples(), 0).longest_ms is None
    assert make_group("g", [lag(1, 0)], Samples(), 0).longest_ms == 0


def test_the_last_commit_of_a_group_is_that_of_any_stream():
    lags = [lag(1, 0, committed_at_ms=7), lag(2, 0, committed_at_ms=9), lag(3, 0)]
    assert make_group("g", lags, Samples(), 0).committed_at_ms == 9
    assert make_group("g", [], Samples(), 0).committed_at_ms is None


def test_the_chart_has_the_streams_that_lag_most_and_their_sum():
    ids = range(1, LINES_MAX + 2)
    point = {("g", each): each for each in ids} | {("other", 1): 99}
    lags = [lag(each, each) for each in ids]
    chart = make_group("g", lags, sampled(point, point), 2_000).chart
    names = [each.name for each in chart.lines]
    assert names == ["s6", "s5", "s4", "s3", "all streams"]
    assert chart.lines[-1].now == "21"
    few = make_group("g", lags[:2], sampled(point, point), 2_000).chart
    assert [each.name for each in few.lines] == ["s2", "s1"]


def test_members_have_the_names_of_their_streams():
    one = MemberInfo("m1", ("a*", "b"), (1, 2), (3,), 10_000, 60_000, "etl")
    many = MemberInfo("m2", ("*",), tuple(range(4, 16)), (), 10_000, 60_000, None)
    first, second = make_members([one, many], {1: "a1", 3: "b", 4: None})
    assert first == MemberRow("m1", "etl", "a*, b", "a1, 2", "b")
    assert (second.subject, second.gives_up) == ("", "")
    assert second.reads == "4, 5, 6, 7, 8, 9, 10, 11, 12, 13 and 2 more"
