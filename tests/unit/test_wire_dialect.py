"""Dialects: differences between servers, and their translation by the client."""

import pytest
from msgspec.structs import replace

from sbp_core.errors import (
    ConfigurationError,
    HeaderError,
    NotLeaderError,
    StatusCode,
    StatusError,
    UnsupportedError,
)
from sbp_core.wire._generated import LAYOUTS
from sbp_core.wire.dialect import (
    Dialect,
    ServerRole,
    Speech,
    append_time_ms,
    depends_on_dialect,
    dialect_of,
    is_for_driver,
    merge_answers,
    opcode_of,
    parse_dialect,
)
from sbp_core.wire.flat import Table as TableKind
from sbp_core.wire.flat import Vector
from sbp_core.wire.headers import (
    RESPONSE_TABLES,
    RESULT_FIELDS,
    AppendResponse,
    AppendResult,
    CreateStreamResult,
    CreateStreamsResponse,
    DescribeTxnsResponse,
    FetchResponse,
    FetchResult,
    HeartbeatResponse,
    ListRangesResponse,
    ListRangesResult,
    RangeCriteria,
    Status,
    Stream,
    TxnDescription,
)
from sbp_core.wire.opcodes import Opcode

pytestmark = pytest.mark.dialect

FOREIGN = Dialect.ELASTICSTREAM_2023_04
PD = Speech(ServerRole.PLACEMENT_DRIVER, FOREIGN)
RS = Speech(ServerRole.RANGE_SERVER, FOREIGN)
OURS = Speech(ServerRole.RANGE_SERVER)
OK = Status(code=1200)


def test_dialects_are_known_by_name():
    assert [parse_dialect(name) for name in ("specification", "elasticstream-2023-04")] == [
        *Dialect
    ]
    with pytest.raises(ConfigurationError, match=r"'klingon'.*specification, elasticstream"):
        parse_dialect("klingon")


@pytest.mark.parametrize(
    ("status", "dialect"),
    [
        (None, Dialect.SPECIFICATION),
        (Status(), Dialect.SPECIFICATION),
        (Status(code=StatusCode.INVALID_REQUEST), Dialect.SPECIFICATION),
        (OK, FOREIGN),
    ],
)
def test_a_dialect_is_recognised_by_its_success(status, dialect):
    assert dialect_of(status) is dialect


ABSENT = (
    Opcode.END_TXN,
    Opcode.REPLICATE,
    Opcode.READ_ENTRIES,
    Opcode.LOOKUP_OFFSETS,
    Opcode.COMMIT_CURSORS,
    Opcode.DESCRIBE_CURSORS,
    Opcode.REGISTER_SCHEMAS,
    Opcode.DESCRIBE_SCHEMAS,
    Opcode.JOIN_GROUP,
    Opcode.GROUP_HEARTBEAT,
    Opcode.LEAVE_GROUP,
    Opcode.DESCRIBE_GROUP,
    Opcode.DESCRIBE_SERVERS,
    Opcode.DRAIN_SERVERS,
    Opcode.LIST_GRANTS,
    Opcode.CHANGE_GRANTS,
    Opcode.CHECK_RIGHTS,
    Opcode.TAKE_CUT,
    Opcode.RESTORE_METADATA,
    Opcode.COMMIT_TXN,
    Opcode.DESCRIBE_TXNS,
)


@pytest.mark.parametrize("operation", ABSENT, ids=lambda each: each.name)
def test_an_operation_that_a_dialect_does_not_have_is_refused(operation):
    assert opcode_of(operation, Dialect.SPECIFICATION) is operation
    with pytest.raises(UnsupportedError, match=f"speaks {FOREIGN}, .* no {operation.name}"):
        opcode_of(operation, FOREIGN)


def test_only_what_a_named_range_server_takes_is_asked_before_the_dialect_is_known():
    at_once = {each for each in Opcode if not depends_on_dialect(each)}
    assert at_once == {
        Opcode.PING,
        Opcode.APPEND,
        Opcode.FETCH,
        Opcode.SEAL_RANGE,
        Opcode.SYNC_RANGES,
    }
    assert not any(is_for_driver(each) for each in {*at_once, Opcode.DESCRIBE_RANGE, *ABSENT})
    assert is_for_driver(Opcode.LIST_RANGES)
    assert is_for_driver(Opcode.ALLOCATE_ID)


@pytest.mark.parametrize(
    ("told", "dialect", "time_ms"),
    [
        (1_682_000_000, FOREIGN, 1_682_000_000_000),
        (1_682_000_000_123, FOREIGN, 1_682_000_000_123),
        (1_682_000_000, Dialect.SPECIFICATION, 1_682_000_000),
        (-1, FOREIGN, -1),
        (0, FOREIGN, 0),
    ],
)
def test_times_of_appends_are_ms_whoever_tells_them(told, dialect, time_ms):
    assert append_time_ms(told, dialect) == time_ms


def test_one_operation_has_another_opcode():
    different = [Opcode.DESCRIBE_RANGE, *ABSENT]
    assert opcode_of(Opcode.DESCRIBE_RANGE, FOREIGN) == 0x2004
    assert opcode_of(Opcode.DESCRIBE_RANGE, Dialect.SPECIFICATION) == 0x2005
    assert {opcode_of(each, FOREIGN) for each in Opcode if each not in different} == {
        each for each in Opcode if each not in different
    }


@pytest.mark.parametrize(
    ("speech", "operation"),
    [(PD, Opcode.CREATE_RANGE), (RS, Opcode.DESCRIBE_RANGE), (OURS, Opcode.CREATE_RANGE)],
)
def test_0x2004_asks_for_another_operation_at_each_server(speech, operation):
    assert speech.operation_of(0x2004) is operation
    assert speech.operation_of(0x2005) is Opcode.DESCRIBE_RANGE
    with pytest.raises(ValueError, match="32767"):
        speech.operation_of(0x7FFF)


@pytest.mark.parametrize(
    ("code", "at_pd", "at_server"),
    [
        (StatusCode.NONE, 1200, 1200),
        (StatusCode.UNKNOWN, 1500, 2500),
        (StatusCode.INVALID_REQUEST, 1400, 1400),
        (StatusCode.UNSUPPORTED_VERSION, 1498, 1498),
        (StatusCode.PD_NOT_LEADER, 1503, 1503),
    ],
)
def test_the_codes_of_the_specification_are_translated(code, at_pd, at_server):
    said = Status(code, "why", b"detail")
    for speech, expected in ((PD, at_pd), (RS, at_server), (OURS, code)):
        assert speech.answer(HeartbeatResponse(status=said)).status == replace(said, code=expected)
        result = AppendResult(1, 0, -1, 7, said)
        spoken = speech.answer(AppendResponse(append_responses=(result,)))
        assert spoken.append_responses == (replace(result, status=replace(said, code=expected)),)


def test_all_other_codes_stay_as_they_are():
    for code in StatusCode:
        if code >= 1000:
            spoken = PD.answer(HeartbeatResponse(status=Status(code)))
            assert spoken.status.code == code


def test_an_error_keeps_its_words_and_what_belongs_to_it():
    spoken = PD.error(NotLeaderError(StatusCode.PD_NOT_LEADER, "not me", b"cluster"))
    assert (spoken.code, spoken.message, spoken.detail) == (1503, "not me", b"cluster")
    assert RS.error(HeaderError("no table")).code == 1400
    assert RS.error(StatusError(StatusCode.UNKNOWN, "a bug")).code == 2500
    told = HeaderError("no table")
    assert OURS.error(told) is told


@pytest.mark.parametrize("table", RESPONSE_TABLES.values(), ids=lambda table: table.__name__)
def test_an_answer_without_status_gets_one(table):
    assert PD.answer(table()).status == OK
    assert OURS.answer(table()) == table()


def test_results_without_status_get_one():
    answer = PD.answer(CreateStreamsResponse(0, (CreateStreamResult(Stream(1)),)))
    assert answer == CreateStreamsResponse(0, (CreateStreamResult(Stream(1), status=OK),), OK)


def test_results_that_have_none_are_left_alone():
    answer = PD.answer(DescribeTxnsResponse(0, (TxnDescription("p", 1),)))
    assert answer.txns == (TxnDescription("p", 1),)


def test_nothing_to_read_and_nothing_to_list_have_their_own_words():
    gone = Status(StatusCode.NOT_FOUND, "deleted")
    results = (FetchResult(1, 0, 2), FetchResult(2, 1, 0), FetchResult(3, 2, 0, gone))
    spoken = RS.answer(FetchResponse(fetch_responses=results)).fetch_responses
    assert [each.status.code for each in spoken] == [1200, 1204, 1404]
    assert OURS.answer(FetchResponse(fetch_responses=results)).fetch_responses == results
    owner = RangeCriteria(stream_id=9)
    listed = ListRangesResponse(list_responses=(ListRangesResult(owner, (), gone, 9),))
    assert PD.answer(listed).list_responses == (ListRangesResult(owner, (), OK, 9),)
    assert OURS.answer(listed) == listed


def test_parts_are_merged_into_one_answer_in_their_order():
    def part(*stream_ids):
        results = tuple(CreateStreamResult(Stream(each)) for each in stream_ids)
        return CreateStreamsResponse(len(stream_ids), results, Status())

    assert merge_answers([part(1, 2), part(), part(3)]) == replace(
        part(1, 2, 3), throttle_time_ms=1
    )
    assert merge_answers([part(1)]) == part(1)
    assert merge_answers([HeartbeatResponse("c")]) == HeartbeatResponse("c")


@pytest.mark.parametrize("table", RESPONSE_TABLES.values(), ids=lambda table: table.__name__)
def test_an_answer_has_one_vector_of_results_at_most(table):
    vectors = [field for field in LAYOUTS[table] if isinstance(field.kind, Vector)]
    results = [each.name for each in vectors if isinstance(each.kind.element, TableKind)]
    assert results == ([RESULT_FIELDS[table]] if table in RESULT_FIELDS else [])
