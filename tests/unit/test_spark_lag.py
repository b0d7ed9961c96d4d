"""How far a query is behind, by its progress alone."""

from __future__ import annotations

import json
import logging
from types import SimpleNamespace

import pytest

from sbp_core.errors import ConfigurationError
from sbp_spark.lag import LagListener, StreamLag, lag


def offset(stalled=None, **nexts):
    streams = " ".join(f"{name[1:]}={at}@1" for name, at in nexts.items())
    more = {"stalled": stalled} if stalled else {}
    return json.dumps({**more, "streams": streams, "version": 2})


def progress(*sources):
    ends = [{"endOffset": end, "latestOffset": latest} for end, latest in sources]
    return {"id": "q", "name": None, "batchId": 7, "sources": ends}


def test_records_are_counted_from_the_end_of_the_batch_to_the_tails():
    found = lag(progress((offset(s1=5, s2=9), offset(s1=25, s2=9, s3=4))))
    assert found == [StreamLag(1, 5, 20), StreamLag(2, 9, 0)]


def test_a_stream_that_went_backwards_is_not_ahead():
    assert lag(progress((offset(s1=5), offset(s1=3)))) == [StreamLag(1, 5, 0)]


def test_stalled_streams_are_reported_also_those_that_were_not_begun():
    latest = offset({"1": 1000, "2": 2000}, s1=5)
    assert lag(progress((offset({"2": 1500}, s1=5), latest))) == [
        StreamLag(1, 5, None, 1000),
        StreamLag(2, None, None, 2000),
    ]


def test_missing_progress_is_unknown_lag():
    for latest in (None, "null"):
        assert lag(progress((offset(s1=5), latest))) == [StreamLag(1, 5, None)]
    assert lag(progress(('{"initial": true, "version": 2}', offset(s1=5)))) == []


def test_other_sources_are_passed_over():
    others = ['{"orders":{"0":23}}', None, "17", "not json"]
    assert lag(progress(*((each, each) for each in others))) == []
    found = lag(progress(("17", "18"), (offset(s1=1), offset(s1=2)), (offset(s1=2), offset(s1=2))))
    assert [each.record_count for each in found] == [1, 0]


def test_a_listener_calls_or_logs(caplog):
    event = SimpleNamespace(progress=progress((offset(s1=5), offset(s1=25))))
    told = []
    LagListener(on_lag=lambda *what: told.append(what)).onQueryProgress(event)
    assert told == [(event.progress, [StreamLag(1, 5, 20)])]
    with caplog.at_level(logging.INFO, "sbp_spark"):
        LagListener().onQueryProgress(event)
    assert "query q batch 7 is behind by 20 records, an unknown number of bytes" in caplog.text
    assert "0 of 1 streams are stalled" in caplog.text


@pytest.mark.parametrize(
    ("end", "latest", "told"),
    [
        (offset(), "null", "behind by 0 records, 0 bytes (estimated), the oldest 0 ms old; 0 of 0"),
        (offset(s1=5), offset({"1": 9}, s1=5), "behind by an unknown number of records"),
        (offset(s1=5, s2=5), offset({"1": 9}, s1=5, s2=5), "by an unknown number of records"),
        (offset(s1=5, s2=5), offset({"1": 9}, s1=5, s2=8), "behind by at least 3 records"),
    ],
)
def test_the_log_says_no_more_than_is_known(caplog, end, latest, told):
    with caplog.at_level(logging.INFO, "sbp_spark"):
        LagListener().onQueryProgress(SimpleNamespace(progress=progress((end, latest))))
    assert told in caplog.text


def test_a_listener_is_silent_of_other_queries(caplog):
    event = SimpleNamespace(progress=progress(("17", "18")))
    with caplog.at_level(logging.INFO, "sbp_spark"):
        LagListener().onQueryProgress(event)
    assert not caplog.records


def test_a_wrong_endpoint_is_reported_at_once():
    with pytest.raises(ConfigurationError, match="not host:port"):
        LagListener("nowhere")
