from __future__ import annotations

import contextlib
import json
import string

from hypothesis import given
from hypothesis import strategies as st

from sbp_core.client import StreamBounds, StreamInfo
from sbp_core.errors import ConfigurationError
from sbp_spark.options.read_positions import AtOffset, BeforeTail, Earliest, Latest, Positions
from sbp_spark.options.sink import SINK_OPTIONS, parse_sink_options
from sbp_spark.options.source import SOURCE_OPTIONS, parse_source_options
from sbp_spark.options.stream_selection import parse_stream_ref
from sbp_spark.reading.locating import check_positions, locate, positions_of

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
    assert isinstance(stream.key, int) == text.isdecimal()
    assert str(stream.key) == text


@given(stream_lists, st.sampled_from(["startingOffsets", "endingOffsets"]), st.data())
def test_offsets_in_json_belong_to_their_streams(streams, option, data):
    offsets = {stream: data.draw(st.integers(0, 2**63 - 1)) for stream in streams}
    shuffled = dict(data.draw(st.permutations(list(offsets.items()))))
    given = {"endpoint": "pd:1", "streams": ",".join(streams), option: json.dumps(shuffled)}
    options = parse_source_options(given, streaming=True)
    found = options.starting if option == "startingOffsets" else options.ending
    assert found.by_stream == {stream: AtOffset(offset) for stream, offset in offsets.items()}


infos = st.lists(
    st.builds(
        StreamInfo,
        stream_id=st.integers(0, 20),
        name=st.none() | names,
        replica_count=st.just(1),
        retention_period_ms=st.just(0),
        created_at_ms=st.just(0),
    ),
    max_size=6,
    unique_by=(lambda info: info.stream_id, lambda info: info.name or info.stream_id),
)


@given(infos, st.data())
def test_json_names_exactly_the_streams_by_name_or_id(streams, data):
    every_name = [str(info.stream_id) for info in streams]
    every_name += [info.name for info in streams if info.name is not None]
    named = data.draw(st.lists(st.sampled_from([*every_name, "stranger"]), unique=True))
    positions = Positions(None, {name: AtOffset(at) for at, name in enumerate(named)})
    meant = {
        info.stream_id: [named.index(n) for n in (str(info.stream_id), info.name) if n in named]
        for info in streams
    }
    is_exact = all(len(found) == 1 for found in meant.values()) and "stranger" not in named
    try:
        check_positions(positions, streams)
    except ConfigurationError:
        assert not is_exact
    else:
        assert is_exact
        found = positions_of(positions, streams)
        assert found == {stream_id: AtOffset(at) for stream_id, (at,) in meant.items()}


@given(
    st.integers(0, 100),
    st.integers(0, 100),
    st.sampled_from([Earliest(), Latest()])
    | st.integers(1, 300).map(BeforeTail)
    | st.integers(0, 200).map(AtOffset),
)
def test_positions_relative_to_the_tail_lie_inside_the_stream(start, count, position):
    bound = StreamBounds(1, start, start + count)
    offset = locate(position, bound)
    if isinstance(position, AtOffset):
        assert offset == position.offset
    else:
        assert start <= offset <= start + count
    if isinstance(position, BeforeTail):
        assert bound.next_offset - offset == min(position.record_count, count)
