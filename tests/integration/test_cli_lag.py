"""`sbp lag`, and `sbp consume` from a time, against a running server."""

import json
from collections import Counter
from datetime import UTC, datetime, timedelta, timezone

import pytest

from sbp_core.cli.group_lag import find_group_lags
from sbp_core.cli.main import main
from sbp_core.client import AppendItem
from tests.support.cluster import rows_batch

HEADING = ["STREAM", "ID", "CURSOR", "TAIL", "LAG", "BEHIND", "COMMITTED", "MEMBER"]


@pytest.fixture
def run(cluster, capfd):
    """Runs a command; returns its exit code and what it wrote."""

    def run_command(*words):
        exit_code = main([*words, "--endpoint", cluster.endpoint])
        return exit_code, *capfd.readouterr()

    return run_command


def shown(run, *words):
    exit_code, output, errors = run(*words)
    assert (exit_code, errors) == (0, "")
    return output.splitlines()


def objects(run, *words):
    return [json.loads(line) for line in shown(run, *words, "--json")]


def append(client, stream_id, *values):
    (outcome,) = client.append([AppendItem(stream_id, rows_batch(values))])
    return outcome


def test_lag_of_a_group(run, client, new_streams):
    behind, done, trimmed = client.describe_streams(new_streams(3))
    group = f"lag-{behind.stream_id}"
    for info in (behind, done, trimmed):
        append(client, info.stream_id, b"a", b"b", b"c")
    client.commit_cursors(group, {behind.stream_id: 1, done.stream_id: 3, trimmed.stream_id: 0})
    client.trim_streams({trimmed.stream_id: 2})
    found = objects(run, "lag", group)
    assert [(each["stream"], each["stream_id"]) for each in found] == [
        (info.name, info.stream_id) for info in (behind, done, trimmed)
    ]
    assert {each["group"] for each in found} == {group}
    columns = ("next_offset", "start_offset", "tail_offset", "lag_records", "lost_records")
    assert [tuple(each[name] for name in columns) for each in found] == [
        (1, 0, 3, 2, 0),
        (3, 0, 3, 0, 0),
        (0, 2, 3, 1, 2),
    ]
    assert found[1]["lag_ms"] == 0
    assert all(0 <= each["lag_ms"] < 3_600_000 for each in found)
    heading, *rows, total = shown(run, "lag", group)
    assert heading.split() == HEADING
    assert [row.split()[:5] for row in rows] == [
        [behind.name, str(behind.stream_id), "1", "3", "2"],
        [done.name, str(done.stream_id), "3", "3", "0"],
        [trimmed.name, str(trimmed.stream_id), "0", "3", "1"],
    ]
    assert rows[2].endswith("2 records trimmed before the group read them")
    assert total.split()[:2] == ["total", "3"]


def test_the_member_that_reads_a_stream_is_shown(run, client, new_streams):
    read, alone = client.describe_streams(new_streams(2))
    group = f"members-{read.stream_id}"
    client.commit_cursors(group, {read.stream_id: 0, alone.stream_id: 0})
    membership = client.join_group(group, [read.name])
    found = objects(run, "lag", group)
    assert [each["member"] for each in found] == [membership.member_id, None]
    _, *rows, _ = shown(run, "lag", group)
    assert [row.split()[-1] for row in rows] == [membership.member_id, "-"]
    client.leave_group(group, membership.member_id)
    assert [each["member"] for each in objects(run, "lag", group)] == [None, None]


def test_groups_are_listed_and_one_without_cursors_is_an_error(run, client, new_streams):
    (info,) = client.describe_streams(new_streams(1))
    group = f"listed-{info.stream_id}"
    client.commit_cursors(group, {info.stream_id: 0})
    append(client, info.stream_id, b"a", b"b")
    assert group in {each["group"] for each in objects(run, "groups", "list")}
    lags = {(each["group"], each["lag_records"]) for each in objects(run, "lag")}
    assert (group, 2) in lags
    heading, *rows = shown(run, "lag")
    assert heading.split() == ["GROUP", "STREAMS", "LAG", "BEHIND", "COMMITTED"]
    assert [group, "1", "2"] in [row.split()[:3] for row in rows]
    assert f"did you mean '{group}'" in run("lag", f"{group}x")[2]
    client.delete_streams([info.stream_id])
    exit_code, output, errors = run("lag", group)
    assert (exit_code, output) == (1, "")
    assert f"group {group} has no cursors" in errors
    assert run("lag", "not a group")[0] == 1


class Counting:
    """A client that counts the calls of its methods."""

    def __init__(self, client):
        self._client = client
        self.counts = Counter()

    def __getattr__(self, name):
        self.counts[name] += 1
        return getattr(self._client, name)


def test_the_streams_of_many_groups_are_looked_at_once(client, new_streams):
    streams = [each.stream_id for each in client.describe_streams(new_streams(3))]
    for stream_id in streams:
        append(client, stream_id, b"a")
        append(client, stream_id, b"b")
    offsets = {f"many-{streams[0]}-{number}": number % 3 for number in range(40)}
    for group, offset in offsets.items():
        client.commit_cursors(group, dict.fromkeys(streams, offset))
    counting = Counting(client)
    found = find_group_lags(counting, {each: client.describe_cursors(each) for each in offsets})
    assert counting.counts == {"find_streams": 1, "reach": 1, "append_times": 2}
    for group, offset in offsets.items():
        assert [each.lag_records for each in found[group]] == [2 - offset] * 3
        assert all(each.lag_ms == 0 for each in found[group] if offset == 2)
    first, second = (found[f"many-{streams[0]}-{number}"][0] for number in (0, 1))
    times = [client.append_times({streams[0]: offset})[streams[0]] for offset in (0, 1)]
    assert first.lag_ms - second.lag_ms == times[1] - times[0]


def test_records_are_consumed_from_a_time(run, client, new_streams):
    (info,) = client.describe_streams(new_streams(1))
    outcomes = [append(client, info.stream_id, b"0")]
    while outcomes[-1].append_time_ms == outcomes[0].append_time_ms:
        outcomes.append(append(client, info.stream_id, b"%d" % len(outcomes)))
    epoch = datetime(1970, 1, 1, tzinfo=UTC)
    moment = epoch + timedelta(milliseconds=outcomes[-1].append_time_ms)
    east = moment.astimezone(timezone(timedelta(hours=5)))
    for text in (moment.isoformat(), moment.replace(tzinfo=None).isoformat(), east.isoformat()):
        lines = shown(run, "consume", info.name, "--from-timestamp", text)
        assert lines == [str(len(outcomes) - 1)]
    late = (moment + timedelta(milliseconds=1)).isoformat()
    assert shown(run, "consume", info.name, "--from-timestamp", late) == []
    everything = shown(run, "consume", info.name, "--from-timestamp", "1970-01-01")
    assert everything == [str(number) for number in range(len(outcomes))]
