"""Schemas with both clients against answers that a server may give, and some that it may not."""

from __future__ import annotations

import pyarrow as pa
import pytest

from sbp_core.client import SchemaVersion
from sbp_core.errors import (
    AlreadyExistsError,
    NotFoundError,
    Outcome,
    ProtocolError,
    SchemaError,
    StatusCode,
    UnsupportedError,
)
from sbp_core.records import StreamSchema
from sbp_core.wire.headers import (
    DescribeSchemasResponse,
    Feature,
    HeartbeatResponse,
    RegisterSchemasResponse,
    SchemaEntry,
    Status,
)
from sbp_core.wire.opcodes import Opcode
from tests.support.client import AsyncDriver
from tests.support.scripted_peer import Exchange, ScriptedPeer, reset, status


def schema_of(**columns: pa.DataType) -> StreamSchema:
    return StreamSchema.of(pa.schema(list(columns.items())))


A = schema_of(a=pa.int32())
B = schema_of(b=pa.int32())
AB = schema_of(a=pa.int32(), b=pa.int32())
BA = schema_of(b=pa.int32(), a=pa.int32())


@pytest.fixture
def server(peer: ScriptedPeer) -> ScriptedPeer:
    """A placement driver that knows schemas."""
    accepted = (Feature("schemas"),)
    peer.script(Opcode.HEARTBEAT, lambda each: each.answer(HeartbeatResponse(features=accepted)))
    return peer


def entry(
    stream_id: int, version: int, schema: StreamSchema, failure: Status | None = None
) -> SchemaEntry:
    return SchemaEntry(
        stream_id, version, schema.fingerprint, schema.encode(), 100 + version, failure
    )


def version_of(stream_id: int, version: int, schema: StreamSchema) -> SchemaVersion:
    return SchemaVersion(stream_id, version, schema, 100 + version)


def described(*parts: tuple[SchemaEntry, ...]):
    def answer(exchange: Exchange) -> None:
        for at, part in enumerate(parts, 1):
            exchange.answer(DescribeSchemasResponse(schemas=part), is_end=at == len(parts))

    return answer


def registered(*entries: SchemaEntry):
    return lambda exchange: exchange.answer(RegisterSchemasResponse(schemas=entries))


def asked_versions(server: ScriptedPeer) -> list[tuple[int, StreamSchema]]:
    found = [each.header.schemas for each in server.seen(Opcode.REGISTER_SCHEMAS)]
    return [
        (item.version, StreamSchema(pa.ipc.read_schema(pa.py_buffer(item.schema))))
        for (item,) in found
    ]


def test_versions_come_in_frames_cut_anywhere(make, server) -> None:
    server.script(
        Opcode.DESCRIBE_SCHEMAS,
        described((SchemaEntry(9, 0), entry(7, 1, A)), (entry(7, 2, AB),), (entry(3, 1, B),)),
    )
    found = make(server.endpoint).do("describe_schemas", [9, 7, 3, 7])
    assert found == {
        9: (),
        7: (version_of(7, 1, A), version_of(7, 2, AB)),
        3: (version_of(3, 1, B),),
    }
    (exchange,) = server.seen(Opcode.DESCRIBE_SCHEMAS)
    assert exchange.header.stream_ids == (9, 7, 3)
    assert not exchange.header.newest_only


def test_all_missing_streams_are_named(make, server) -> None:
    gone = status(StatusCode.NOT_FOUND)
    server.script(
        Opcode.DESCRIBE_SCHEMAS,
        described((SchemaEntry(9, status=gone), entry(7, 1, A), SchemaEntry(3, status=gone))),
    )
    server.script(Opcode.REGISTER_SCHEMAS, registered(SchemaEntry(9, status=gone)))
    driver = make(server.endpoint)
    with pytest.raises(NotFoundError, match="stream 9, stream 3"):
        driver.do("describe_schemas", [9, 7, 3])
    with pytest.raises(NotFoundError, match="stream 9"):
        driver.do("register_schema", 9, A, version=1)


@pytest.mark.parametrize(
    "entries", [(), (entry(7, 1, A),), (entry(3, 1, A), entry(7, 1, A)), (SchemaEntry(3, 0),) * 2]
)
def test_an_answer_to_something_else_is_none(make, server, entries) -> None:
    server.script(Opcode.DESCRIBE_SCHEMAS, described(entries))
    server.script(Opcode.REGISTER_SCHEMAS, registered(*entries))
    driver = make(server.endpoint)
    with pytest.raises(ProtocolError, match="says nothing about some of the 2 schemas"):
        driver.do("describe_schemas", [7, 3])
    with pytest.raises(ProtocolError, match="says nothing about the schema of stream 5"):
        driver.do("register_schema", 5, A, version=1)


def test_a_schema_that_cannot_be_read_is_named(make, server) -> None:
    foreign = SchemaEntry(7, 4, "0" * 32, bytes(pa.schema({"a": pa.uint8()}).serialize()))
    server.script(Opcode.DESCRIBE_SCHEMAS, described((foreign,)))
    message = r"(?s)version 4 of the schema of stream 7: .*a has type uint8"
    with pytest.raises(SchemaError, match=message):
        make(server.endpoint).do("describe_schemas", [7])


def test_a_registration_whose_answer_is_lost_is_repeated(make, server) -> None:
    server.script(Opcode.REGISTER_SCHEMAS, reset, registered(entry(7, 1, A)))
    made = make(server.endpoint).do("register_schema", 7, A, version=1)
    assert made == version_of(7, 1, A)
    assert asked_versions(server) == [(1, A), (1, A)]
    (item,) = server.seen(Opcode.REGISTER_SCHEMAS)[0].header.schemas
    assert (item.stream_id, item.fingerprint) == (7, A.fingerprint)


def test_an_outdated_change_gets_the_newest_version(make, server) -> None:
    server.script(Opcode.REGISTER_SCHEMAS, registered(entry(7, 3, B, status(StatusCode.CONFLICT))))
    assert make(server.endpoint).do("register_schema", 7, A, version=1) == version_of(7, 3, B)


def test_a_version_that_could_not_be_next_is_refused(make, server) -> None:
    conflict = status(StatusCode.CONFLICT)
    server.script(
        Opcode.REGISTER_SCHEMAS,
        registered(entry(7, 3, B, conflict)),
        registered(SchemaEntry(7, 0, status=conflict)),
        registered(SchemaEntry(7, 0)),
    )
    driver = make(server.endpoint)
    for _ in range(2):
        with pytest.raises(AlreadyExistsError, match="schema of stream 7: scripted"):
            driver.do("register_schema", 7, A, version=5)
    with pytest.raises(ProtocolError, match="says nothing about the schema of stream 7"):
        driver.do("register_schema", 7, A, version=1)


def test_an_error_names_the_fault_of_a_schema(make, server) -> None:
    refused = entry(7, 1, A, Status(StatusCode.INVALID_REQUEST, "column x:\n  - bad"))
    server.script(Opcode.REGISTER_SCHEMAS, registered(refused))
    with pytest.raises(SchemaError, match=r"schema of stream 7: column x:\n  - bad"):
        make(server.endpoint).do("register_schema", 7, B, version=2)


def test_evolving_registers_only_what_is_new(make, server) -> None:
    server.script(Opcode.DESCRIBE_SCHEMAS, described((entry(7, 4, AB),)))
    driver = make(server.endpoint)
    for schema in (A.arrow, AB.arrow, BA.arrow, pa.schema({"b": pa.int8()})):
        for may_change in (False, True):
            found = driver.do("evolve_schema", 7, StreamSchema.of(schema), may_change=may_change)
            assert found == version_of(7, 4, AB)
    assert server.seen(Opcode.REGISTER_SCHEMAS) == []
    assert all(each.header.newest_only for each in server.seen(Opcode.DESCRIBE_SCHEMAS))


def test_a_stream_without_schema_gets_one_that_may_not_change(make, server) -> None:
    server.script(Opcode.DESCRIBE_SCHEMAS, described((SchemaEntry(7, 0),)))
    server.script(Opcode.REGISTER_SCHEMAS, registered(entry(7, 1, A)))
    driver = make(server.endpoint)
    assert driver.do("evolve_schema", 7, A, may_change=False) == version_of(7, 1, A)
    assert asked_versions(server) == [(1, A)]


def test_a_refused_change_names_the_change_that_would_fit(make, server) -> None:
    server.script(Opcode.DESCRIBE_SCHEMAS, described((entry(7, 4, A),)))
    given = schema_of(a=pa.int64(), c=pa.date32())
    message = r"version 4 of the schema of stream 7 .*\n  ~ column a widens .*\n  \+ column c date"
    with pytest.raises(SchemaError, match=message):
        make(server.endpoint).do("evolve_schema", 7, given, may_change=False)
    with pytest.raises(SchemaError, match="column a is string"):
        make(server.endpoint).do("evolve_schema", 7, schema_of(a=pa.string()), may_change=True)
    assert server.seen(Opcode.REGISTER_SCHEMAS) == []


def test_a_first_version_of_another_client_may_not_be_changed_either(make, server) -> None:
    server.script(Opcode.DESCRIBE_SCHEMAS, described((SchemaEntry(7, 0),)))
    server.script(Opcode.REGISTER_SCHEMAS, registered(entry(7, 1, B, status(StatusCode.CONFLICT))))
    with pytest.raises(SchemaError, match=r"\+ column a int32"):
        make(server.endpoint).do("evolve_schema", 7, AB, may_change=False)
    assert len(server.seen(Opcode.REGISTER_SCHEMAS)) == 1


def test_a_placement_driver_that_knows_no_schemas_is_not_asked(make, peer) -> None:
    driver: AsyncDriver = make(peer.endpoint)
    for method, arguments in (
        ("describe_schemas", {"stream_ids": [7]}),
        ("register_schema", {"stream_id": 7, "schema": A, "version": 1}),
        ("evolve_schema", {"stream_id": 7, "schema": A, "may_change": True}),
    ):
        with pytest.raises(UnsupportedError, match="does not know schemas of streams") as caught:
            driver.do(method, **arguments)
        assert caught.value.outcome is Outcome.NOT_APPLIED
    assert peer.seen(Opcode.DESCRIBE_SCHEMAS) == peer.seen(Opcode.REGISTER_SCHEMAS) == []
