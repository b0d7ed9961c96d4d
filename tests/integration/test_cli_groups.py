"""`sbp groups` against a running server."""

import json

import pytest

from sbp_core.cli.main import main
from sbp_core.client import AppendItem
from tests.support.cluster import rows_batch


@pytest.fixture
def run(cluster, capfd):
    """Runs a command; returns its exit code and what it wrote."""

    def run_command(*words):
        exit_code = main([*words, "--endpoint", cluster.endpoint])
        return exit_code, *capfd.readouterr()

    return run_command


@pytest.fixture
def streams(client, new_streams):
    """Three streams with the offsets 0 to 3, exclusive."""
    found = client.describe_streams(new_streams(3))
    client.append([AppendItem(each.stream_id, rows_batch([b"a", b"b", b"c"])) for each in found])
    return found


@pytest.fixture
def group(client, streams):
    """A group with cursors in the first two of them."""
    name = f"moved-{streams[0].stream_id}"
    client.commit_cursors(name, {streams[0].stream_id: 1, streams[1].stream_id: 3})
    return name


def shown(run, *words):
    exit_code, output, errors = run(*words)
    assert (exit_code, errors) == (0, "")
    return output.splitlines()


def objects(run, *words):
    return [json.loads(line) for line in shown(run, *words, "--json")]


def offsets(client, group):
    return [each.next_offset for each in client.describe_cursors(group)]


def test_groups_are_listed_also_those_that_have_members_only(run, client, group, streams):
    joined = f"joined-{streams[0].stream_id}"
    membership = client.join_group(joined, [streams[0].name])
    found = {each["group"]: each["committed_at_ms"] for each in objects(run, "groups", "list")}
    assert found[group] == max(each.committed_at_ms for each in client.describe_cursors(group))
    assert found[joined] is None
    assert [joined, "never"] in [row.split() for row in shown(run, "groups", "list")]
    client.leave_group(joined, membership.member_id)
    assert joined not in {each["group"] for each in objects(run, "groups", "list")}


def test_a_group_is_described_with_its_members(run, client, group, streams):
    first, second, third = streams
    membership = client.join_group(group, [first.name, third.name])
    (found,) = objects(run, "groups", "describe", group)
    assert (found["group"], found["state"]) == (group, "stable")
    (member,) = found["members"]
    assert member["member_id"] == membership.member_id
    assert member["stream_ids"] == [first.stream_id, third.stream_id]
    assert [(each["stream"], each["lag_records"], each["member"]) for each in found["streams"]] == [
        (first.name, 2, membership.member_id),
        (second.name, 0, None),
    ]
    title, *rows = shown(run, "groups", "describe", group)
    assert title == f"{group}: stable, 1 member"
    assert rows[1].split()[0] == membership.member_id
    assert rows[-1].split()[:2] == ["total", "2"]
    client.leave_group(group, membership.member_id)


def test_a_group_of_members_that_committed_nothing_is_described(run, client, streams):
    group = f"fresh-{streams[0].stream_id}"
    membership = client.join_group(group, [streams[0].name])
    title, _, row = shown(run, "groups", "describe", group)
    assert title == f"{group}: stable, 1 member"
    assert row.split()[-2] == streams[0].name
    client.leave_group(group, membership.member_id)
    exit_code, output, errors = run("groups", "describe", group)
    assert (exit_code, output) == (1, "")
    assert f"group {group} has no cursors" in errors


@pytest.mark.parametrize(
    ("where", "after"),
    [
        ("earliest", [0, 0]),
        ("latest", [3, 3]),
        ("-1", [2, 2]),
        ("2", [2, 2]),
        ("1970-01-01", [0, 0]),
    ],
)
def test_cursors_move_if_that_is_wanted(run, client, group, where, after):
    command = ("groups", "reset", group, "--to", where)
    before = offsets(client, group)
    previewed = objects(run, *command)
    assert all(not each["done"] for each in previewed)
    assert shown(run, *command)[-1] == "nothing is moved yet: repeat this with --yes"
    assert offsets(client, group) == before
    moved = objects(run, *command, "--yes")
    assert [{**each, "done": False} for each in moved] == previewed
    assert {each["from"]: each["to"] for each in moved} == {
        old: new for old, new in zip(before, after, strict=True) if old != new
    }
    assert offsets(client, group) == after
    assert shown(run, *command) == [f"no cursor of group {group} would be moved"]


def test_the_table_says_what_a_move_means(run, group, streams):
    heading, row, last = shown(run, "groups", "reset", group, "--to", "latest", "--yes")
    assert heading.split() == ["STREAM", "ID", "FROM", "TO", "DIFFERENCE", "EFFECT"]
    assert row.split()[2:5] == ["1", "3", "+2"]
    assert row.endswith("2 records skipped")
    assert last == f"moved: 1 cursor of group {group}"


def test_one_stream_is_moved_and_one_without_a_cursor_is_not(run, client, group, streams):
    command = ("groups", "reset", group, "--to", "0", "--yes", "--stream")
    shown(run, *command, streams[1].name)
    assert offsets(client, group) == [1, 0]
    exit_code, output, errors = run(*command, streams[2].name)
    assert (exit_code, output) == (1, "")
    assert f"group {group} has no cursor in {streams[2].name}" in errors


def test_all_cursors_move_or_none(run, client, group, streams):
    client.trim_streams({streams[0].stream_id: 2})
    exit_code, _, errors = run("groups", "reset", group, "--to", "1", "--yes")
    assert exit_code == 1
    assert "nothing was moved" in errors
    assert offsets(client, group) == [1, 3]


def test_a_group_with_members_is_refused(run, client, group, streams):
    membership = client.join_group(group, [streams[0].name])
    for command in (("reset", group, "--to", "latest"), ("delete", group)):
        exit_code, output, errors = run("groups", *command, "--yes")
        assert (exit_code, output) == (1, "")
        assert "has 1 member" in errors
        exit_code, output, errors = run("groups", *command)
        assert exit_code == 0
        assert "has 1 member" in errors
    assert offsets(client, group) == [1, 3]
    client.leave_group(group, membership.member_id)


def test_a_group_is_deleted_if_that_is_wanted(run, client, group, streams):
    assert shown(run, "groups", "delete", group)[-1] == (
        "nothing is deleted yet: repeat this with --yes"
    )
    shown(run, "groups", "delete", group, "--stream", streams[0].name, "--yes")
    assert offsets(client, group) == [3]
    (row,) = objects(run, "groups", "delete", group, "--yes")
    assert (row["from"], row["to"], row["done"]) == (3, None, True)
    assert group not in {each["group"] for each in objects(run, "groups", "list")}


def test_a_position_that_is_none_is_a_mistake_in_the_call(run, group):
    for words in (["--to", "yesterday"], []):
        exit_code, output, errors = run("groups", "reset", group, *words)
        assert (exit_code, output) == (2, "")
        assert "sbp groups reset --help" in errors
