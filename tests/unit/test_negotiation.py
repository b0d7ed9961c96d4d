"""Features that two ends agree on, and the handling of senseless offers."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sbp_core import limits
from sbp_core.errors import ConfigurationError
from sbp_core.record_sizes import DEFAULT, LARGEST, RecordSizes
from sbp_core.session.negotiation import (
    NO_FEATURES,
    NOTHING,
    FeatureName,
    RequestedFeatures,
    accept,
    offer,
    settle,
)
from sbp_core.wire.headers import Feature, HeartbeatRequest, decode_header, encode_header

EVERYTHING = RequestedFeatures(
    compression=True, isolation="nightly.backfill-1", handler_duration=True
)


def negotiate(features, connection_id=7):
    offered = offer(features)
    agreement, answered = accept(offered, connection_id, LARGEST)
    assert settle(offered, answered) == agreement, "the two ends disagree"
    return agreement


def test_costly_features_are_offered_only_on_request():
    agreement = negotiate(NO_FEATURES)
    assert not agreement.has_compression
    assert agreement.isolation == ""
    assert agreement.has_deadline
    assert agreement.has_header_checksum
    assert agreement.has_idempotent_append
    assert agreement.has_transactions
    assert agreement.has_schemas


@pytest.mark.parametrize(
    "feature",
    [
        Feature("telepathy", b"1"),
        Feature(None, b""),
        Feature("compression", b"lz4"),
        Feature("compression", b""),
        Feature("replication", b"\x00\x63"),
        Feature("record-bytes", b"\x04"),
        Feature("isolation", b""),
        Feature("isolation", b"two words"),
        Feature("isolation", b"\xff\xfe"),
        Feature("isolation", b"x" * (limits.ISOLATION_CLASS_LENGTH_MAX + 1)),
    ],
)
def test_a_server_declines_what_it_cannot_make_sense_of(feature):
    assert accept([feature], 7) == (NOTHING, ())


def test_a_server_chooses_the_codec_that_it_knows():
    agreement, answered = accept([Feature("compression", b"snappy,zstd,lz4")], 7)
    assert agreement.has_compression
    assert answered == (Feature("compression", b"zstd"),)


@pytest.mark.parametrize(
    ("known", "offered", "answer"),
    [
        (b"\x01", b"", b"\x01"),  # by a release that knows no versions
        (b"\x01", b"\x01\x02", b"\x01"),  # by the next release
        (b"\x01\x02", b"\x01", b"\x01"),
        (b"\x02\x01", b"\x01\x02", b"\x02"),
        (b"\x02\x03", b"\x01\x02", b"\x02"),
    ],
)
def test_servers_speak_the_newest_version_of_replication_that_both_know(known, offered, answer):
    agreement, answered = accept([Feature("replication", offered)], 7, replication_versions=known)
    assert answered == (Feature("replication", answer),)
    assert agreement.replication_version == answer[0]
    own = offered or b"\x01"
    agreement = settle(
        offer(NO_FEATURES, replication_versions=own), answered, replication_versions=own
    )
    assert agreement.replication_version == answer[0]


def test_an_answer_without_a_version_is_that_of_a_release_that_knows_none():
    answered = [Feature("replication")]
    assert settle(offer(NO_FEATURES), answered).replication_version == 1
    own = b"\x02\x03"
    offered = offer(NO_FEATURES, replication_versions=own)
    assert settle(offered, answered, replication_versions=own).replication_version == 0


def test_servers_without_a_common_version_replicate_nothing():
    agreement, answered = accept(offer(NO_FEATURES), 7, replication_versions=b"\x02")
    assert not agreement.has(FeatureName.REPLICATION)
    assert agreement.has(FeatureName.TRANSACTIONS)
    assert "replication" not in {each.name for each in answered}


def test_the_first_offer_of_a_feature_counts():
    agreement, answered = accept([Feature("isolation", b"a"), Feature("isolation", b"b")], 7)
    assert agreement.isolation == "a"
    assert answered == (Feature("isolation", b"a"),)


@pytest.mark.parametrize(
    "answered",
    [
        Feature("compression", b"lz4"),
        Feature("connection-id", b"\x00\x01"),
        Feature("replication", b"\x02"),
        Feature("replication", b"\x01\x01"),
        Feature("telepathy"),
    ],
)
def test_a_client_ignores_an_answer_that_it_cannot_use(answered):
    assert settle(offer(EVERYTHING), [answered]) == NOTHING


@pytest.mark.parametrize("name", ["two words", "ü", "x" * 65, "a/b"])
def test_an_isolation_class_is_a_name(name):
    with pytest.raises(ConfigurationError, match="isolation class"):
        RequestedFeatures(isolation=name)


@given(
    st.lists(
        st.builds(
            Feature,
            st.one_of(st.none(), st.sampled_from(list(map(str, FeatureName))), st.text(max_size=9)),
            st.binary(max_size=20),
        ),
        max_size=12,
    )
)
def test_whatever_is_offered_both_ends_agree_on_the_same(offered):
    sent = decode_header(HeartbeatRequest, encode_header(HeartbeatRequest(features=tuple(offered))))
    agreement, answered = accept(sent.features, 1)
    settled = settle(offered, answered)
    assert replace(settled, sizes=agreement.sizes) == agreement
    assert settled.sizes == DEFAULT, "the server's limits do not depend on the client's"


@pytest.mark.parametrize(
    ("told", "read"),
    [(1, 8), (8, 8), (9, 9), (64, 64), (65, 64), (4095, 64)],
)
def test_each_end_learns_how_large_records_may_be(told, read):
    """In MiB; what is beyond the bounds of this version counts as the nearest one."""
    sizes = RecordSizes(read * limits.MIB)
    data = (told * limits.MIB).to_bytes(4, "big")
    agreement, answered = accept([Feature("record-bytes", data)], 7, RecordSizes(9 * limits.MIB))
    assert agreement.sizes == sizes
    assert answered == (Feature("record-bytes", (9 * limits.MIB).to_bytes(4, "big")),)
    assert settle(offer(NO_FEATURES), [Feature("record-bytes", data)]).sizes == sizes
