from __future__ import annotations

import contextlib
import json
import string

from hypothesis import given
from hypothesis import strategies as st

from sbp_core.errors import ConfigurationError
from sbp_spark.options import (
    SINK_OPTIONS,
    SOURCE_OPTIONS,
    parse_sink_options,
    parse_source_options,
    parse_stream_ref,
)

names = st.text(string.ascii_letters + string.digits + "._-", min_size=1, max_size=249).filter(
    lambda name: name not in {".", ".."} and not name.isdecimal()
)
refs = names | st.integers(0, 2**63 - 1).map(str)
stream_lists = st.lists(refs, min_size=1, max_size=8, unique=True)
known_keys = st.sampled_from([spec.name for spec in SOURCE_OPTIONS + SINK_OPTIONS])
hostile = st.dictionaries(known_keys | st.text(), st.text(), max_size=8)


@given(hostile, st.booleans())
def test_any_text_gives_a_source_or_a_configuration_error(options, streaming):
    with contextlib.suppress(ConfigurationError):
        parse_source_options(options, streaming=streaming)


@given(hostile)
def test_any_text_gives_a_sink_or_a_configuration_error(options):
    with contextlib.suppress(ConfigurationError):
        parse_sink_options(options)


@given(refs)
def test_a_stream_is_either_an_id_or_a_name(text):
    stream = parse_stream_ref(text)
    assert (stream.maybe_id is None) != (stream.maybe_name is None)
    assert text == (stream.maybe_name if stream.maybe_id is None else str(stream.maybe_id))


@given(stream_lists, st.data())
def test_starting_offsets_belong_to_their_streams(streams, data):
    offsets = {stream: data.draw(st.integers(-2, 2**63 - 1)) for stream in streams}
    shuffled = dict(data.draw(st.permutations(list(offsets.items()))))
    options = parse_source_options(
        {
            "endpoint": "pd:1",
            "streams": ",".join(streams),
            "startingOffsets": json.dumps(shuffled),
        },
        streaming=True,
    )
    assert [stream.text for stream in options.streams] == streams
    assert options.starting_offsets == tuple(offsets[stream] for stream in streams)


@given(stream_lists, st.data())
def test_a_map_that_is_not_of_exactly_the_streams_is_refused(streams, data):
    named = data.draw(st.lists(st.sampled_from(streams) | refs, unique=True))
    options = {
        "endpoint": "pd:1",
        "streams": ",".join(streams),
        "startingOffsets": json.dumps(dict.fromkeys(named, 0)),
    }
    difference = set(named) ^ set(streams)
    try:
        parse_source_options(options, streaming=True)
    except ConfigurationError as error:
        assert str(error).count("\n") == len(difference) > 0  # noqa: PT017
    else:
        assert not difference
