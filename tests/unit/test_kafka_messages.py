"""Every API and version that is served: requests and responses survive their bytes."""

import typing
from contextlib import suppress
from dataclasses import asdict, fields, is_dataclass
from datetime import UTC, datetime, timedelta
from types import NoneType, UnionType

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from kio.index import load_request_schema, load_response_schema
from kio.schema.errors import ErrorCode

from sbp_core.errors import FrameError, SbpError, UnsupportedError
from sbp_core.kafka.lengths import ELEMENTS_MAX, check_lengths
from sbp_core.kafka.messages import decode_request, encode_response
from sbp_core.kafka.served_apis import APIS, refuse_version
from tests.support.clock import examples
from tests.support.kafka_wire import decode_response, encode_body, encode_request

SERVED = [
    pytest.param(each.key, version, id=f"{each.key}-v{version}")
    for each in APIS.values()
    for version in range(each.first_version, each.last_version + 1)
]
NEWEST = [pytest.param(each.key, each.last_version, id=str(each.key)) for each in APIS.values()]
VERSIONS, METADATA = 18, 3
INTEGERS = {"int8": 8, "int16": 16, "int32": 32, "int64": 64}
MS = timedelta(milliseconds=1)
SIMPLE = {
    **{name: st.integers(-(1 << bits - 1), (1 << bits - 1) - 1) for name, bits in INTEGERS.items()},
    "uint16": st.integers(0, 2**16 - 1),
    "bool": st.booleans(),
    "string": st.text(max_size=5),
    "bytes": st.binary(max_size=5),
    "records": st.binary(max_size=5),
    "uuid": st.uuids(),
    "error_code": st.sampled_from(ErrorCode),
    "timedelta_i32": st.integers(-(2**31), 2**31 - 1).map(lambda ms: ms * MS),
    "timedelta_i64": st.integers(-(2**40), 2**40).map(lambda ms: ms * MS),
    "datetime_i64": st.integers(0, 2**40).map(lambda ms: datetime.fromtimestamp(0, UTC) + ms * MS),
}


def messages(schema):
    """Any messages of a schema."""
    return st.builds(schema, **{each.name: _values(each) for each in fields(schema)})


def _values(field):
    kind, is_optional = field.type, False
    if isinstance(kind, UnionType):
        is_optional = True
        (kind,) = (each for each in typing.get_args(kind) if each is not NoneType)
    is_list = typing.get_origin(kind) is tuple
    if is_list:
        kind = typing.get_args(kind)[0]
    name = field.metadata.get("kafka_type")
    found = messages(kind) if is_dataclass(kind) else SIMPLE[name]
    if is_list:
        found = st.lists(found, max_size=2).map(tuple)
    return st.none() | found if is_optional else found


def plain(value):
    """A value as handlers return it."""
    match value:
        case dict():
            return {name: plain(each) for name, each in value.items()}
        case list() | tuple():
            return [plain(each) for each in value]
        case timedelta():
            return value // MS
        case datetime():
            return (value - datetime.fromtimestamp(0, UTC)) // MS
    return value


@pytest.mark.parametrize(("key", "version"), SERVED)
@settings(max_examples=examples(8))
@given(data=st.data())
def test_any_request_is_read_as_its_client_wrote_it(key, version, data):
    body = data.draw(messages(load_request_schema(key, version)))
    values = {each.name: getattr(body, each.name) for each in fields(body)}
    frame = encode_request(key, version, **values)
    request = decode_request(frame)
    body_bytes = encode_body(body)
    assert check_lengths(type(body), frame, len(frame) - len(body_bytes)) == len(frame)
    assert (request.api_key, request.version, request.correlation_id) == (key, version, 1)
    assert (request.body, request.client_id) == (body, "me")


@pytest.mark.parametrize(("key", "version"), SERVED)
@settings(max_examples=examples(8))
@given(data=st.data())
def test_any_response_is_read_as_its_handler_meant_it(key, version, data):
    body = data.draw(messages(load_response_schema(key, version)))
    encoded = encode_response(key, version, 1, plain(asdict(body)) | {"of another version": 1})
    assert decode_response(key, version, encoded) == body


@pytest.mark.parametrize(("key", "version"), SERVED)
def test_what_a_handler_leaves_out_has_a_default(key, version):
    encoded = encode_response(key, version, 1, {})
    assert type(decode_response(key, version, encoded)) is load_response_schema(key, version)


@pytest.mark.parametrize(("key", "version"), [(0, 2), (0, 99), (-1, 0), (4711, 0), (METADATA, -1)])
def test_an_api_or_a_version_that_is_not_served_is_refused(key, version):
    frame = b"".join(each.to_bytes(2, "big", signed=True) for each in (key, version)) + bytes(8)
    with pytest.raises(UnsupportedError):
        refuse_version(frame)


def test_a_client_that_asks_for_versions_in_a_new_version_learns_of_the_served_ones():
    frame = bytes([0, VERSIONS, 0, 99, 0, 0, 0, 1]) + b"whatever a new client sends"
    answer = decode_response(VERSIONS, 0, refuse_version(frame))
    assert answer.error_code is ErrorCode.unsupported_version
    served = {each.api_key: (each.min_version, each.max_version) for each in answer.api_keys}
    assert served == {each.key: (each.first_version, each.last_version) for each in APIS.values()}


@pytest.mark.parametrize(("key", "version"), NEWEST)
@settings(max_examples=examples(4))
@given(data=st.data(), length=st.sampled_from([b"\xff\xff\xff\xff\x0f", b"\x7f\xff\xff\xff"]))
def test_no_length_is_believed_before_its_bytes_are_there(key, version, data, length):
    """kio ends the process when a list declares more than there is memory."""
    body = data.draw(messages(load_request_schema(key, version)))
    frame = encode_request(key, version, **{x.name: getattr(body, x.name) for x in fields(body)})
    for at in range(12, len(frame)):
        for width in (1, 4):
            with suppress(SbpError):
                decode_request(frame[:at] + length + frame[at + width :])


def test_a_request_has_so_many_elements():
    def asking(count):
        return encode_request(METADATA, 1, topics=({"name": "t"},) * count)

    assert len(decode_request(asking(ELEMENTS_MAX)).body.topics) == ELEMENTS_MAX
    with pytest.raises(FrameError, match="elements"):
        decode_request(asking(ELEMENTS_MAX + 1))


@given(data=st.binary(max_size=60), key=st.sampled_from(sorted(APIS)))
def test_bytes_that_are_no_request_are_refused(data, key):
    frame = bytes([0, key, 0, APIS[key].last_version]) + data
    try:
        request = decode_request(frame)
    except SbpError:
        return
    assert request.api_key == key
