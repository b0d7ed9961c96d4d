"""Options of the sink: their meaning, and contradictions between them."""

import pytest

from sbp_core.client import Credentials
from sbp_core.errors import ConfigurationError
from sbp_core.limits import MIB
from sbp_core.wire.txn_id import ONE_SHOT_PREFIX
from sbp_spark.options.sink import (
    SINK_OPTIONS,
    Batching,
    BatchKey,
    Delivery,
    DeliveryOptions,
    OnReplayMismatch,
    parse_sink_options,
)
from sbp_spark.options.sink_targets import (
    BadRecordPolicy,
    ColumnOptions,
    Creation,
    OnBadRecord,
    Routing,
    Targets,
)
from sbp_spark.options.stream_selection import StreamRef


def sink(streaming=None, **options):
    return parse_sink_options({"endpoint": "pd:1", **options}, streaming=streaming)


def faults(streaming=None, **options):
    with pytest.raises(ConfigurationError) as caught:
        sink(streaming, **options)
    head, *lines = str(caught.value).splitlines()
    assert head.startswith(f"{len(lines)} fault")
    assert all("; " in line for line in lines)
    return lines


def test_defaults():
    options = sink()
    assert options.targets == Targets()
    assert options.delivery == DeliveryOptions()
    assert options.delivery.delivery is Delivery.EXACTLY_ONCE
    assert options.batching == Batching()
    assert options.bad_records == BadRecordPolicy()
    assert options.creation is None
    assert options.columns is None
    assert options.key_column == "key"


def test_every_option_of_the_table_is_known():
    given = {
        "stream": "orders",
        "createStreams": "true",
        "createReplicas": "1",
        "createRetentionPeriod": "7d",
        "createRetentionBytes": "1g",
        "delivery": "Exactly-Once",
        "onReplayMismatch": "warn",
        "txnAppId": "nightly",
        "txnVersion": "0",
        "onBadRecord": "deadletter: bad-ones",
        "batchBytes": "2m",
        "batchRecords": "500",
        "retryTimeout": "30m",
        "batchCompression": "zstd",
        "networkCompression": "none",
        "tlsCaFile": "/etc/sbp/ca.pem",
        "tlsCertFile": "/etc/sbp/etl.pem",
        "tlsKeyFile": "/etc/sbp/etl.key",
        "tokenEnv": "SBP_TOKEN",
    }
    options = sink(False, **given)
    assert options.targets == Targets((StreamRef("orders"),))
    assert options.creation == Creation(1, 7 * 86_400_000, 1024 * MIB)
    key = BatchKey("nightly", 0)
    assert options.delivery == DeliveryOptions(
        Delivery.EXACTLY_ONCE, OnReplayMismatch.WARN, key=key
    )
    assert options.bad_records == BadRecordPolicy(OnBadRecord.DEAD_LETTER, StreamRef("bad-ones"))
    assert options.batching == Batching(2 * MIB, 500, None, "zstd")
    token = {"tlsCaFile": "ca", "tokenFile": "token"}
    assert sink(False, streams="a", **token).servers.credentials == Credentials("token")
    assert sink(True, stream="a", writerGeneration="3").delivery.generation == 3
    lingering = sink(stream="a", delivery="at-least-once", lingerDuration="2s")
    assert lingering.batching.linger_ms == 2_000
    others = {"streams": "a, 7", "routing": "Round-Robin", "truncate": "true"}
    spread = sink(False, **others)
    assert spread.targets == Targets((StreamRef("a"), StreamRef("7")), Routing.ROUND_ROBIN)
    assert spread.delivery.is_truncating
    columns = {
        "encoding": "Columns",
        "mergeSchema": "true",
        "routingColumn": "Account",
        "timestampColumn": "at",
        "statsColumns": "price, place.city",
    }
    assert sink(False, streams="a,b", **columns).columns == ColumnOptions(
        is_merging=True,
        routing_column="Account",
        timestamp_column="at",
        stats_columns=("price", "place.city"),
    )
    named = {"endpoint", "writerGeneration", "lingerDuration", *given, *token, *others, *columns}
    assert named == {spec.name for spec in SINK_OPTIONS}


@pytest.mark.parametrize(
    ("streaming", "given", "told"),
    [
        (None, {"stream": "a", "streams": "b,c"}, ["stream is given beside streams"]),
        (None, {"routing": "key"}, ["routing is given without streams"]),
        (None, {"streams": "b,b"}, ["streams names 'b' more than once"]),
        (None, {"streams": "b", "routing": "hash"}, ["routing is 'hash'; expected key or round"]),
        (
            None,
            {"createReplicas": "1", "createRetentionPeriod": "1h", "createRetentionBytes": "1g"},
            ["createReplicas is given without", "createRetentionPeriod is", "createRetentionBytes"],
        ),
        (None, {"createStreams": "true", "createReplicas": "8"}, ["createReplicas is '8'"]),
        (None, {"delivery": "twice"}, ["delivery is 'twice'"]),
        (None, {"txnAppId": "a"}, ["txnAppId is given without txnVersion"]),
        (None, {"txnVersion": "1"}, ["txnVersion is given without txnAppId"]),
        (None, {"txnAppId": "a b", "txnVersion": "-1"}, ["txnAppId is 'a b'", "txnVersion is"]),
        (None, {"txnAppId": "a", "txnVersion": str(2**63)}, ["txnVersion is"]),
        (None, {"txnAppId": f"{ONE_SHOT_PREFIX}a", "txnVersion": "1"}, ["txnAppId is 'once-"]),
        (
            True,
            {"txnAppId": "a", "txnVersion": "1", "truncate": "false"},
            ["txnAppId is given in a streaming", "txnVersion is", "truncate is given in a stream"],
        ),
        (False, {"writerGeneration": "1"}, ["writerGeneration is given in a batch write"]),
        (False, {"onReplayMismatch": "warn"}, ["onReplayMismatch is given without txnAppId"]),
        (
            None,
            {"delivery": "at-least-once", "onReplayMismatch": "warn", "truncate": "true"},
            ["onReplayMismatch is given beside delivery", "truncate is given beside delivery"],
        ),
        (
            False,
            {"txnAppId": "a", "txnVersion": "1", "truncate": "true"},
            ["truncate is given beside txnAppId"],
        ),
        (None, {"onBadRecord": "deadletter"}, ["onBadRecord is 'deadletter'"]),
        (None, {"onBadRecord": "deadletter:"}, ["onBadRecord names no stream"]),
        (None, {"onBadRecord": "ignore"}, ["onBadRecord is 'ignore'"]),
        (None, {"batchBytes": "10m", "batchRecords": "1000001"}, ["batchBytes is", "batchRecords"]),
        (
            None,
            {"batchBytes": "0", "lingerDuration": "0s", "delivery": "at-least-once"},
            ["batchBytes is", "lingerDuration is"],
        ),
        (
            None,
            {"lingerDuration": "2s"},
            ["lingerDuration is given without"],
        ),
        (None, {"retryTimeout": "never"}, ["retryTimeout is 'never'"]),
        (None, {"batchCompression": "gzip"}, ["batchCompression is 'gzip'"]),
    ],
)
def test_contradictions_and_what_cannot_be(streaming, given, told):
    lines = faults(streaming, **given)
    assert len(lines) == len(told)
    for line, words in zip(lines, told, strict=True):
        assert words in line


@pytest.mark.parametrize(
    ("given", "told"),
    [
        ({"encoding": "json"}, ["encoding is 'json'; expected rows or columns"]),
        (
            {"mergeSchema": "false", "routingColumn": "a", "timestampColumn": "b"},
            [
                "mergeSchema is given without encoding=columns",
                "routingColumn is given without encoding=columns",
                "timestampColumn is given without encoding=columns",
            ],
        ),
        ({"encoding": "columns"}, ["encoding is columns without stream or streams"]),
        (
            {"encoding": "columns", "stream": "a", "routingColumn": "b"},
            ["routingColumn is given without streams"],
        ),
        (
            {"encoding": "columns", "streams": "a,b", "routing": "key"},
            ["routing is key without routingColumn"],
        ),
        (
            {
                "encoding": "columns",
                "streams": "a,b",
                "routing": "round-robin",
                "routingColumn": "b",
            },
            ["routingColumn is given beside routing=round-robin"],
        ),
        (
            {"encoding": "columns", "stream": "a", "routingColumn": "", "mergeSchema": "yes"},
            ["mergeSchema is 'yes'", "routingColumn is empty", "routingColumn is given without"],
        ),
    ],
)
def test_contradictions_about_columns(given, told):
    lines = faults(**given)
    assert len(lines) == len(told)
    for line, words in zip(lines, told, strict=True):
        assert words in line


def test_columns_have_a_key_if_one_is_named():
    columns = {"encoding": "columns", "streams": "a,b"}
    assert sink(**columns).key_column is None
    assert sink(**columns, routing="round-robin").key_column is None
    assert sink(**columns, routingColumn="c", routing="key").key_column == "c"


def test_all_faults_at_once():
    lines = faults(stream="a,b", delivery="x", batchBytes="y", onBadRecord="z", truncate="w")
    assert len(lines) == 5
