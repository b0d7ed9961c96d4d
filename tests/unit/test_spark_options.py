from __future__ import annotations

import json
import re

import pytest

from sbp_core.client import Credentials, Tls
from sbp_core.errors import ConfigurationError
from sbp_spark.options.endpoints import Servers
from sbp_spark.options.read_positions import AtOffset, Earliest, Latest, Positions
from sbp_spark.options.sink import SINK_OPTIONS, parse_sink_options
from sbp_spark.options.sink_targets import Targets
from sbp_spark.options.source import SOURCE_OPTIONS, OnDataLoss, TriggerLimits, parse_source_options
from sbp_spark.options.stream_selection import (
    StreamList,
    StreamPattern,
    StreamRef,
    parse_stream_ref,
)
from tests.support.spark import GOOD, faults, only_fault, source


def test_defaults_of_a_streaming_source():
    options = source()
    assert options.servers == Servers(("pd:12378",))
    assert options.selection == StreamList((StreamRef("orders"), StreamRef("17")))
    assert options.starting == Positions(Latest())
    assert options.ending is None
    assert options.limits == TriggerLimits()
    assert options.contents.include_headers is False


def test_a_batch_source_starts_at_the_earliest_offset_by_default():
    assert source(streaming=False).starting == Positions(Earliest())


def test_keys_and_words_are_taken_in_any_case_and_values_are_stripped():
    options = parse_source_options(
        {
            "ENDPOINT": " pd:1 ",
            "Streams": " a , b ",
            "startingoffsets": "Earliest",
            "MAXRECORDSPERTRIGGER": "7",
            "includeheaders": "TRUE",
        },
        streaming=True,
    )
    assert options.servers.endpoints == ("pd:1",)
    assert [str(stream) for stream in options.selection.refs] == ["a", "b"]
    assert options.starting == Positions(Earliest())
    assert options.limits == TriggerLimits(records_max=7)
    assert options.contents.include_headers is True


def test_one_key_spelled_in_two_ways_is_refused():
    (line,) = faults({**GOOD, "Streams": "other"})
    assert line.startswith("  - streams is given more than once")


def test_all_faults_are_reported_at_once():
    lines = faults(
        {
            "streams": "a,,b,a",
            "startingOffsets": "soon",
            "maxRecordsPerTrigger": "0",
            "includeHeaders": "yes",
            "startingOffset": "x",
        }
    )
    assert [line.split()[1] for line in lines] == [
        "'startingOffset'",
        "endpoint",
        "streams",
        "streams",
        "startingOffsets",
        "maxRecordsPerTrigger",
        "includeHeaders",
    ]
    for line in lines:
        assert re.search("; (expected|add|did you mean) ", line), line


@pytest.mark.parametrize(
    ("key", "near"),
    [
        ("startingoffset", "startingOffsets"),
        ("maxOffsetsPerTrigger", "maxRecordsPerTrigger"),
        ("SUBSCRIBE", "streams"),
        ("stream", "streams"),
        ("includeHeader", "includeHeaders"),
    ],
)
def test_an_unknown_option_suggests_the_nearest_one(key, near):
    line = only_fault(**{key: "secret"})
    assert line.startswith(f"  - {key!r} is ")
    assert f"did you mean {near}?" in line
    assert "secret" not in line


def test_an_option_of_the_other_side_is_named_as_such():
    line = only_fault(StatsColumns="day")
    assert line.endswith("'StatsColumns' is an option of the sink only; remove it")
    told = r"'where' is an option of the source only; remove it$"
    with pytest.raises(ConfigurationError, match=told):
        parse_sink_options({"endpoint": "pd:1", "where": "id = 1"})


def test_a_path_is_a_list_of_streams_and_nothing_for_a_sink():
    options = parse_source_options({"endpoint": "pd:1", "path": "a, 7"}, streaming=True)
    assert options.selection == StreamList((StreamRef("a"), StreamRef("7")), "path")
    (line,) = faults({"endpoint": "pd:1", "path": "a,"})
    assert line.startswith("  - path at position 2")
    with pytest.raises(ConfigurationError, match="path has no meaning here"):
        parse_sink_options({"endpoint": "pd:1", "path": "orders"})


def test_a_pattern_matches_whole_names():
    pattern = parse_source_options({"endpoint": "pd:1", "streamsPattern": "a|b.*"}, streaming=None)
    assert pattern.selection == StreamPattern("a|b.*")
    names = ["a", "ab", "b", "bc", "xb", None]
    assert [name for name in names if pattern.selection.matches(name)] == ["a", "b", "bc"]
    (line,) = faults({"endpoint": "pd:1", "streamsPattern": "a("})
    assert "streamsPattern is 'a(', which is wrong: missing )" in line


@pytest.mark.parametrize(
    ("given", "told"),
    [
        ({}, "streams is missing; expected one of streams, streamsPattern, path"),
        ({"path": "a", "streams": "b"}, "streams is given beside path"),
        (
            {"path": "a", "streams": "b", "streamsPattern": "c"},
            "streams is given beside streamsPattern and path",
        ),
    ],
)
def test_streams_are_selected_in_one_way(given, told):
    (line,) = faults({"endpoint": "pd:1", **given})
    assert told in line


def test_several_endpoints_of_one_cluster():
    servers = source(endpoint="a:1, [::1]:2,a:1").servers
    assert servers.endpoints == ("a:1", "[::1]:2")
    assert str(servers) == "a:1,[::1]:2"


@pytest.mark.parametrize(
    ("text", "wrong"),
    [
        ("pd", "endpoint 'pd' is not host:port"),
        ("pd:80,a:1,", "endpoint '' is not host:port"),
        (",".join(f"h{number}:1" for number in range(17)), "17 endpoints are too many"),
        ("", 'endpoint is empty; add .option("endpoint", "host:port"'),
        ("  ", 'endpoint is empty; add .option("endpoint", "host:port"'),
    ],
)
def test_bad_endpoints(text, wrong):
    assert wrong in only_fault(endpoint=text)


def test_credentials_in_an_endpoint_are_not_repeated():
    assert "hunter2" not in only_fault(endpoint="sbp://me:hunter2@pd:80")


@pytest.mark.parametrize(
    "text",
    [
        "",
        ".",
        "..",
        "a/b",
        "a b",
        "ü",
        "x" * 250,
        "\u0661\u0667",
        "a\n",
        "017",
        "00",
        str(2**63),
        "9" * 9999,
    ],
)
def test_bad_streams(text):
    with pytest.raises(ConfigurationError) as caught:
        parse_stream_ref(text)
    assert len(str(caught.value)) < 300


@pytest.mark.parametrize(
    ("text", "wrong"),
    [
        (",", "at position 1: '' is no stream name"),
        ("a,", "at position 2: '' is no stream name"),
        ("a, ,b", "at position 2: '' is no stream name"),
        ("a,b,a", "'a' more than once"),
        ("a,b/c", "at position 2"),
        (" ", "is empty"),
    ],
)
def test_bad_lists_of_streams(text, wrong):
    lines = faults({**GOOD, "streams": text})
    assert all(line.startswith("  - streams ") for line in lines)
    assert wrong in lines[0]


def test_how_to_talk_to_the_servers():
    servers = source(networkCompression="ZSTD", isolationClass="nightly.backfill").servers
    assert servers == Servers(("pd:12378",), True, "nightly.backfill")
    assert source(networkCompression="none").servers == Servers(("pd:12378",))
    sink = parse_sink_options({"endpoint": "pd:1", "networkCompression": "zstd"})
    assert sink.servers == Servers(("pd:1",), is_compressed=True)
    assert str(servers) == "pd:12378"


def test_values_of_fail_on_data_loss():
    assert source().on_data_loss is OnDataLoss.FAIL
    assert source(failOnDataLoss="False").on_data_loss is OnDataLoss.SKIP
    assert source(failOnDataLoss="report").on_data_loss is OnDataLoss.REPORT
    assert "expected true or false or report" in only_fault(failOnDataLoss="maybe")


def test_the_files_of_tls_are_paths_that_nothing_opens_here():
    assert source().servers.tls is None
    assert source(tlsCaFile="no/ca.pem").servers.tls == Tls("no/ca.pem")
    files = {"tlsCaFile": "ca", "tlsCertFile": "cert", "tlsKeyFile": "key"}
    assert source(**files).servers.tls == Tls("ca", "cert", "key")
    assert source(tlsCaFile="ca", tokenFile="t").servers.credentials == Credentials("t")
    named = source(tlsCaFile="ca", tokenEnv="MY_TOKEN").servers.credentials
    assert named == Credentials(token_env="MY_TOKEN")
    assert "tokenFile is given without tlsCaFile" in only_fault(tokenFile="t")
    assert "beside tokenEnv" in only_fault(tlsCaFile="ca", tokenFile="t", tokenEnv="T")
    fault = only_fault(tlsCaFile="ca", tokenEnv="eyJh.s3cret.s3cret")
    assert "tokenEnv" in fault
    assert "s3cret" not in fault
    assert "without tlsKeyFile" in only_fault(tlsCaFile="ca", tlsCertFile="cert")
    assert "tlsKeyFile is given without tlsCertFile" in only_fault(tlsKeyFile="key")


def test_an_empty_optional_value_is_a_fault():
    for name in (
        "startingOffsets",
        "endingOffsets",
        "maxRecordsPerTrigger",
        "maxBytesPerTrigger",
        "minRecordsPerTrigger",
        "includeHeaders",
        "networkCompression",
        "isolationClass",
    ):
        assert f"{name} is empty" in only_fault(**{name: " "})


def test_options_that_spark_adds_to_a_sink_are_ignored_there_only():
    added = {"checkpointlocation": "/c", "queryName": "q"}
    assert parse_sink_options({"endpoint": "pd:1", **added}).targets == Targets()
    assert len(faults({**GOOD, **added})) == 2


@pytest.mark.parametrize("specs", [SOURCE_OPTIONS, SINK_OPTIONS])
def test_option_tables_are_complete(specs):
    names = [spec.name.lower() for spec in specs]
    assert len(set(names)) == len(names)
    assert all(spec.meaning.endswith(".") for spec in specs)
    required = {spec.name for spec in specs if spec.shown_default == "required"}
    parse = parse_sink_options if specs is SINK_OPTIONS else source_of
    with pytest.raises(ConfigurationError) as caught:
        parse({})
    missing = {line.split()[1] for line in str(caught.value).splitlines()[1:]}
    assert missing == required


def source_of(options):
    return parse_source_options(options, streaming=True)


def test_every_option_of_the_source_table_is_known():
    options = {
        **GOOD,
        "startingOffsets": json.dumps({"orders": 1, "17": 2}),
        "endingOffsets": "latest",
        "maxRecordsPerTrigger": "1",
        "maxBytesPerTrigger": "1m",
        "minRecordsPerTrigger": "1",
        "maxTriggerDelay": "1m",
        "targetBatchDuration": "10s",
        "maxRangeStall": "1m",
        "minPartitions": "2",
        "maxRecordsPerPartition": "5",
        "maxBytesPerPartition": "5",
        "fetchBufferBytes": "4m",
        "failOnDataLoss": "report",
        "group": "nightly",
        "trimOnCommit": "true",
        "includeHeaders": "false",
        "encoding": "columns",
        "columns": "id,place.city",
        "where": "place.city is null and id > 1",
        "includeMetadata": "true",
        "networkCompression": "none",
        "isolationClass": "backfill",
        "history": "auto",
        "retryTimeout": "off",
        "tlsCaFile": "ca.pem",
        "tlsCertFile": "cert.pem",
        "tlsKeyFile": "key.pem",
        "tokenFile": "token",
    }
    by_time = {
        **GOOD,
        "startingTimestamp": "-10m",
        "startingOffsetsByTimestampStrategy": "error",
        "endingTimestamp": "2026-01-31",
    }
    by_times = {
        **GOOD,
        "startingOffsetsByTimestamp": json.dumps({"orders": 1, "17": 2}),
        "endingOffsetsByTimestamp": json.dumps({"orders": 1, "17": 2}),
    }
    others = {"streamsPattern", "path", "table", "tokenEnv"}
    tried = options.keys() | by_time.keys() | by_times.keys()
    assert tried == {spec.name for spec in SOURCE_OPTIONS} - others
    assert source_of(options).starting.by_stream == {"orders": AtOffset(1), "17": AtOffset(2)}
    source_of(by_time)
    source_of(by_times)
