"""Forms about streams, and what is said before a stream changes."""

from __future__ import annotations

from dataclasses import replace

import pytest

from sbp_core.client import (
    RangeServerInfo,
    Reach,
    StreamInfo,
    StreamSpec,
    StreamUpdate,
    UnavailableRange,
)
from sbp_core.errors import ConfigurationError, ConnectError
from sbp_core.web.console.stream import deletion_facts, trim_facts, update_facts
from sbp_core.web.console.streams import StreamForm, check_is_new, creation_facts, maybe_refusal

DAY_MS = 86_400_000
INFO = StreamInfo(5, "orders", 3, 7 * DAY_MS, 0, 2**30, 2)
FORM = StreamForm("orders", "3", "2", "7d", "1GiB")


def test_a_form_has_what_the_stream_has():
    assert StreamForm.of(INFO) == FORM
    assert StreamForm.of(StreamInfo(6, None, 1, 0, 0)) == StreamForm()
    assert StreamForm.read({"retention": " 1d "}, FORM) == replace(FORM, retention="1d")
    sent = StreamForm("other").fields() | FORM.fields(prefix="seen-")
    assert StreamForm.read(sent, FORM) == StreamForm("other")
    assert StreamForm.read(sent, StreamForm(), prefix="seen-") == FORM


def test_a_stream_is_created_as_the_form_says():
    spec = FORM.spec()
    assert spec == StreamSpec("orders", 3, 7 * DAY_MS, 2**30, 2)
    assert creation_facts(spec) == [
        "Stream orders is created.",
        "Each record has 3 replicas, acknowledged by 2.",
        "Records are kept: 7d, 1GiB.",
    ]
    assert "for ever" in creation_facts(StreamForm("a").spec())[-1]


@pytest.mark.parametrize(
    ("form", "fault"),
    [
        (StreamForm(), "the stream needs a name"),
        (StreamForm("a", replicas="0"), "replicas: '0' is not a number from 1 to 7"),
        (StreamForm("a b"), "'a b' cannot name a stream"),
        (StreamForm("17"), "'17' cannot name a stream"),
        (StreamForm("a", ack_count="2"), "acknowledged by: 2 is more than 1 replica"),
        (StreamForm("a", retention="soon"), "retention: 'soon' is not 0 or a time such as"),
        (StreamForm("a", replicas="x", retention_size="1GB"), "retention size: '1GB' is not 0"),
    ],
)
def test_what_cannot_be_is_named(form, fault):
    with pytest.raises(ConfigurationError, match=fault):
        form.spec()


def test_a_stream_that_no_server_can_have_now_is_refused_before():
    server = RangeServerInfo(1, "a:1", None, True, 10, 0, 0, 0, 0, 0)
    one = StreamForm("a").spec()
    assert maybe_refusal(one, [server]) is None
    assert maybe_refusal(one, []) is not None
    assert maybe_refusal(one, [replace(server, is_draining=True)]) is not None
    three = replace(one, replica_count=3)
    assert "2 range servers would have to store" in (maybe_refusal(three, [server]) or "")
    assert maybe_refusal(three, [server, server]) is None
    assert maybe_refusal(replace(three, ack_count=1), [server]) is None


def test_a_name_that_a_stream_has_is_refused_before():
    check_is_new("orders", [])
    with pytest.raises(ConfigurationError, match=r"there is a stream orders \(id 5\) already"):
        check_is_new("orders", [INFO])


def test_all_faults_are_named_at_once():
    with pytest.raises(ConfigurationError, match=r"replicas: .*; acknowledged by: .*"):
        StreamForm("a", replicas="x", ack_count="-1").spec()


def test_an_update_has_only_what_differs():
    with pytest.raises(ConfigurationError, match="nothing to change"):
        FORM.update(INFO)
    longer = replace(FORM, retention="0").update(INFO)
    assert longer == StreamUpdate(5, retention_period_ms=0)
    assert update_facts(INFO, longer) == ["Records are kept: 1GiB; now it is 7d, 1GiB."]
    renamed = replace(FORM, name="sales", replicas="1", ack_count="").update(INFO)
    assert renamed == StreamUpdate(5, name="sales", replica_count=1, ack_count=1)
    said = " ".join(update_facts(INFO, renamed))
    assert "who uses the name orders no longer finds it" in said
    assert (
        "from now on have 1 replica, acknowledged by 1: the stream goes on in a new range" in said
    )


def test_a_retention_that_no_text_can_set_stays():
    info = StreamInfo(7, "a", 1, 1_500, 0, 1_500)
    form = StreamForm.of(info)
    assert (form.retention, form.retention_size) == ("1500ms", "1500B")
    assert replace(form, replicas="2").update(info) == StreamUpdate(7, replica_count=2)


@pytest.mark.parametrize("change", [{"retention": "1d"}, {"retention_size": "1MiB"}])
def test_a_shorter_retention_says_that_records_go(change):
    said = update_facts(INFO, replace(FORM, **change).update(INFO))
    assert "removed permanently" in said[-1]


def test_a_first_limit_removes_records_too():
    info = StreamInfo(6, "a", 1, 0, 0)
    assert (
        "removed permanently"
        in update_facts(info, StreamForm("a", retention="1d").update(info))[-1]
    )


def test_a_trim_counts_what_it_removes():
    assert trim_facts(Reach(5, 10, 30), 12)[0] == "2 records below offset 12 removed permanently."
    with pytest.raises(ConfigurationError, match="first record of the stream has offset 10"):
        trim_facts(Reach(5, 10, 30), 10)


def test_a_deletion_counts_what_is_known_of_the_records():
    assert deletion_facts(INFO, Reach(5, 10, 30), ["billing", "mail"]) == [
        "Stream orders and its records, 20 records, removed permanently.",
        "Cursors in it are lost: of billing, mail.",
    ]
    down = UnavailableRange(20, None, "a:1", ConnectError("down"))
    (said,) = deletion_facts(INFO, Reach(5, 10, None, (down,)), [])
    assert "at least 10 records" in said
