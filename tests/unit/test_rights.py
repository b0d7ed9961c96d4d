"""Patterns and grants, the table of operations, and how refused results get into an answer."""

import re
from functools import partial
from pathlib import Path
from types import SimpleNamespace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sbp_core.access.identity import Identity
from sbp_core.access.rights import ON_STREAMS, Grant, Owners, Right, SubjectRights, checked_grant
from sbp_core.errors import InvalidRequestError
from sbp_core.server.guard import RULES, Caller, Results, Rule, Target, lacking_right
from sbp_core.server.refused_items import Merger, narrow
from sbp_core.wire.headers import (
    REQUEST_TABLES,
    RESPONSE_TABLES,
    RESULT_FIELDS,
    AppendInfo,
    AppendRequest,
    DescribeRangeResult,
)
from sbp_core.wire.opcodes import Opcode

NAMES = st.text("ab_-", min_size=1, max_size=6)
PATTERNS = NAMES | NAMES.map("{}*".format) | st.just("*")


PROTOCOL = Path(__file__).parents[2] / "docs/reference/protocol.md"
ROWS = {
    "none": Caller.ANYONE,
    "`read`, `append` or `manage` on each stream": ON_STREAMS,
    "`read` on each stream": {Right.READ},
    "`append` on each stream": {Right.APPEND},
    "`manage` on each stream": {Right.MANAGE},
    "`group` on the group": {Right.GROUP},
    "administrator": Caller.ADMIN,
    "server of the cluster": Caller.SERVER,
}


def test_the_protocol_says_who_may_call_each_operation():
    _, _, table = PROTOCOL.read_text().partition("| right | operations |")
    documented: dict[str, list[object]] = {}
    for right, names in re.findall(
        r"^\| (.+?) \| (.+?) \|$", table.partition("\n\n")[0], re.MULTILINE
    ):
        for part in re.split("[,;]", names):
            documented.setdefault(part.split()[0], []).append(ROWS.get(right))
    undocumented = {Opcode.GOAWAY}
    for opcode in RULES.keys() - undocumented:
        rule = RULES[opcode]
        needed = rule.rights if isinstance(rule, Rule) else rule
        assert needed in documented[opcode.name] or None in documented[opcode.name], opcode


@given(st.lists(st.tuples(st.sampled_from(Right), PATTERNS), max_size=8), st.none() | NAMES)
def test_rights_on_a_name_are_those_of_all_grants_that_match(granted, name):
    def matches(pattern):
        if name is None:
            return pattern == "*"
        return name.startswith(pattern[:-1]) if pattern.endswith("*") else name == pattern

    rights = SubjectRights(Grant("s", *each) for each in granted)
    assert rights.on(name) == {right for right, pattern in granted if matches(pattern)}


@pytest.mark.parametrize(
    ("subject", "right", "pattern", "named"),
    [
        ("", "read", "a", "not a subject"),
        ("a\n", "read", "a", "not a subject"),
        ("s" * 257, "read", "a", "not a subject"),
        ("CN=" + "s" * 510, "read", "a", "513 characters, and 512 are the most"),
        ("/O=Acme/CN=alice", "read", "a", "as in CN=alice,O=Acme"),
        ("s", "write", "a", "'write' cannot be granted: use append, manage, read or group"),
        ("s", "admin", "*", "settings of the servers"),
        ("s", "read", "", "not a pattern"),
        ("s", "read", "*a", "not a pattern"),
        ("s", "read", "a*b*", "not a pattern"),
        ("s", "read", "a" * 251, "not a pattern"),
    ],
)
def test_what_cannot_be_granted_is_refused(subject, right, pattern, named):
    with pytest.raises(InvalidRequestError, match=named):
        checked_grant(subject, right, pattern)


def test_a_grant_of_the_longest_name_is_accepted():
    assert checked_grant("CN=b,O=ü", "read", "a" * 249 + "*").right is Right.READ


OF_ONE_GROUP = {
    *(Opcode.JOIN_GROUP, Opcode.GROUP_HEARTBEAT, Opcode.LEAVE_GROUP, Opcode.DESCRIBE_GROUP),
}
"""Requests that are refused as a whole: they need a group, and have no items."""


def test_every_operation_has_a_rule_whose_fields_its_tables_have():
    assert RULES.keys() == {*Opcode}
    for opcode, rule in RULES.items():
        if isinstance(rule, Caller):
            continue
        request, response = REQUEST_TABLES[opcode], RESPONSE_TABLES[opcode]
        assert {*rule.items} <= {*request.__struct_fields__}, opcode
        assert rule.rights, opcode
        if not rule.is_whole and opcode not in OF_ONE_GROUP:
            assert response in RESULT_FIELDS, opcode
        assert not rule.of_group or "group" in request.__struct_fields__


@pytest.mark.parametrize("opcode", [each for each in RULES if isinstance(RULES[each], Rule)])
def test_a_refusal_names_the_right_to_grant_or_which_ones_serve_what(opcode):
    rights = RULES[opcode].rights
    message = lacking_right(Identity("alice"), rights, Target(names=("orders",))).message
    if rights == ON_STREAMS:
        assert message == (
            "alice has no right on stream orders, and an administrator gives one by `sbp acl grant"
            " alice RIGHT orders`, where RIGHT is read to consume, append to produce, or manage"
        )
    else:
        (right,) = rights
        noun = "group" if right is Right.GROUP else "stream"
        assert message == (
            f"alice lacks the right {right} on {noun} orders; an administrator gives it by `sbp acl"
            f" grant alice {right} orders`"
        )


def test_a_refusal_without_a_name_says_of_which_stream_to_put_it_in():
    for target, of_what in ((Target(7), "that"), (Target(), "a")):
        message = lacking_right(Identity("alice"), RULES[Opcode.APPEND].rights, target).message
        assert message.endswith(f"append NAME`; NAME is the name of {of_what} stream")


def test_a_refusal_names_the_certificate_that_does_not_count():
    identity = Identity("alice", unused_certificate="CN=robot")
    message = lacking_right(identity, RULES[Opcode.FETCH].rights, Target(names=("s",))).message
    assert "; the token of alice counts, and the certificate of CN=robot is not used" in message


def test_only_servers_may_call_what_servers_ask_each_other():
    for_servers = {opcode for opcode, rule in RULES.items() if rule is Caller.SERVER}
    assert for_servers == {
        *(Opcode.ALLOCATE_ID, Opcode.REPORT_METRICS, Opcode.CHECK_RIGHTS, Opcode.END_TXN),
        *(Opcode.REPLICATE, Opcode.READ_ENTRIES, Opcode.SYNC_RANGES),
    }
    for_anyone = {opcode for opcode, rule in RULES.items() if rule is Caller.ANYONE}
    assert for_anyone == {
        *(Opcode.PING, Opcode.GOAWAY, Opcode.HEARTBEAT, Opcode.DESCRIBE_PD_CLUSTER),
    }


@given(st.lists(st.tuples(st.booleans(), st.integers(1, 3)), max_size=12), st.data())
def test_results_of_refused_items_come_at_their_places(items, data):
    """An item that is served has as many results as it says, in frames that are cut anywhere."""
    by_stream = data.draw(st.booleans())
    expected, served, refused = [], [], {}
    for stream_id, (is_refused, count) in enumerate(items):
        if is_refused:
            refused[stream_id] = DescribeRangeResult(stream_id)
            expected.append(refused[stream_id])
        else:
            own = [DescribeRangeResult(stream_id)] * (count if by_stream else 1)
            served += own
            expected += own
    merger = Merger(len(items), refused, by_stream=by_stream)
    cut = data.draw(st.integers(0, len(served)))
    first = merger.merge(served[:cut], is_end=False)
    assert first + merger.merge(served[cut:], is_end=True) == expected


@given(st.lists(st.tuples(st.booleans(), st.binary(max_size=5)), min_size=1, max_size=12))
def test_the_handler_of_an_append_sees_the_other_items_with_their_batches(items):
    infos = tuple(AppendInfo(None, at, len(data)) for at, (_, data) in enumerate(items))
    call = SimpleNamespace(
        opcode=Opcode.APPEND, payload=memoryview(b"".join(data for _, data in items))
    )
    call.narrow = partial(setattr, call, "request")
    refused = {at: object() for at, (is_refused, _) in enumerate(items) if is_refused}
    narrow(call, RULES[Opcode.APPEND].items, AppendRequest(7, infos), refused)
    kept = [at for at in range(len(items)) if at not in refused]
    assert call.request == AppendRequest(7, tuple(infos[at] for at in kept))
    assert bytes(call.payload) == b"".join(items[at][1] for at in kept)


def test_what_a_subject_used_first_is_not_anothers():
    owners = Owners(count_max=2)
    assert owners.claim("a", "me")
    assert owners.claim("b", "me")
    assert not owners.claim("a", "you")
    assert owners.claim("c", "you"), "b was used least recently"
    assert not owners.claim("a", "you")
    assert owners.claim("b", "you")


def test_operations_whose_results_name_their_items_are_the_ones_with_an_index():
    for opcode, rule in RULES.items():
        if not isinstance(rule, Caller) and rule.results is Results.BY_INDEX:
            (field,) = rule.items
            assert field in REQUEST_TABLES[opcode].__struct_fields__
