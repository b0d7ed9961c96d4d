"""The pages of protocol, limits and files leave nothing out; their numbers are the code's."""

import ast
import re
from pathlib import Path

import pytest

from sbp_core import filter_limits, group_limits, limits, properties
from sbp_core.log import boundaries
from sbp_core.log.index_file import INDEX_VERSION, REPLICA_INDEX_VERSION
from sbp_core.pd.metadata.tables import SCHEMA_VERSION, SCHEMA_VERSION_BEFORE
from sbp_core.segment_format import SEGMENT_VERSION, EntryKind
from sbp_core.wire import headers
from sbp_core.wire._generated import LAYOUTS
from sbp_core.wire.flat import Table, Vector
from sbp_core.wire.headers import REQUEST_TABLES, RESPONSE_TABLES
from sbp_core.wire.opcodes import Opcode
from sbp_spark.reading import offsets

ROOT = Path(__file__).parents[2]
TEXT = (ROOT / "docs" / "reference" / "protocol.md").read_text(encoding="utf-8")
LIMITS = (ROOT / "docs" / "reference" / "limits.md").read_text(encoding="utf-8")
FILES = (ROOT / "docs" / "reference" / "file-format.md").read_text(encoding="utf-8")
SECTIONS = dict(re.findall(r"^###? (.+)\n((?:(?!##).*\n)*)", TEXT, re.MULTILINE))
KNOWN_LIMITS = vars(limits) | vars(group_limits) | vars(filter_limits) | vars(properties)
CONFORMANCE = sorted((ROOT / "tests" / "conformance").glob("test_spec_*.py"))

SHARED = {"Status", "StreamRange", "RangeServer", "ReplicaServer", "RangeId", "Stream", "Feature"}
EVERYWHERE = {"timeout_ms", "throttle_time_ms", "status"}
DESCRIBED = sorted(REQUEST_TABLES)


def blocks():
    """Paragraphs, list items and rows, each in one line."""
    for paragraph in re.split(r"\n\s*\n|\n(?=- |\||#)", TEXT):
        yield " ".join(paragraph.split())


def rules():
    found = [re.match(r"- `([\w-]+)`: ", block) for block in blocks() if "MUST" in block]
    return [match[1] if match else None for match in found]


def conformance_tests():
    for path in CONFORMANCE:
        for node in ast.parse(path.read_text(encoding="utf-8")).body:
            if isinstance(node, ast.FunctionDef) and node.name.startswith("test_"):
                yield node.name, ast.get_docstring(node) or ""


def checked_rules():
    for name, docstring in conformance_tests():
        for listed in re.findall(r"Rule: ([\w\s,-]+)\.", docstring):
            for rule in listed.split(","):
                yield name, rule.strip()


def fields_of(table):
    """Names of the fields of a table and of the tables in it that are not shared."""
    layouts = {**LAYOUTS}
    by_name = {each.__name__: each for each in layouts}
    names = set()
    for field in layouts[table]:
        names.add(field.name)
        kind = field.kind.element if isinstance(field.kind, Vector) else field.kind
        if isinstance(kind, Table) and kind.name not in SHARED:
            names |= fields_of(by_name[kind.name])
    return names


def with_linked(name):
    """The section of an operation, and of those whose tables it links."""
    sections = {}
    waiting = [name]
    while waiting:
        name = waiting.pop()
        if name not in sections:
            sections[name] = SECTIONS[name]
            linked = re.findall(r"\[[A-Z]\w+[a-z]\]\(#([a-z_]+)\)", sections[name])
            waiting += [each.upper() for each in linked if each.upper() in Opcode.__members__]
    return "\n".join(sections.values())


def test_every_opcode_is_listed():
    for opcode in Opcode:
        assert f"| {opcode:#06x} | {opcode.name} |".replace("0X", "0x") in TEXT, opcode


@pytest.mark.parametrize("opcode", DESCRIBED, ids=lambda opcode: opcode.name)
def test_every_field_of_an_operation_is_described(opcode):
    section = with_linked(opcode.name)
    named = set(re.findall(r"\w+", section))
    wanted = fields_of(REQUEST_TABLES[opcode]) | fields_of(RESPONSE_TABLES[opcode])
    assert wanted - named - EVERYWHERE == set()


@pytest.mark.parametrize("name", sorted(SHARED - {"ReplicaServer"}))
def test_every_field_of_a_shared_table_is_described(name):
    (table,) = (each for each in LAYOUTS if each.__name__ == name)
    named = set(re.findall(r"\w+", SECTIONS["Shared tables"] + SECTIONS["HEARTBEAT"]))
    assert {field.name for field in LAYOUTS[table]} - named == set()


def test_every_field_of_a_record_batch_is_described():
    named = set(re.findall(r"\w+", SECTIONS["Record batches"]))
    tables = (headers.RecordBatchMeta, headers.RecordMeta, headers.KeyValue)
    names = {field.name for table in tables for field in LAYOUTS[table]}
    assert names - named == set()


def test_the_limits_are_those_of_the_code():
    rows = re.findall(r"^\| `(\w+)` \| (\d+) \|", LIMITS, re.MULTILINE)
    assert len(rows) > 20
    assert {name: int(number) for name, number in rows} == {
        name: KNOWN_LIMITS[name] for name, _ in rows
    }


def limits_in_messages():
    """The limits in messages of the servers, but for those that refuse settings."""
    for part in ("pd", "rangeserver", "server", "session", "wire"):
        for path in sorted((ROOT / "sbp_core" / part).rglob("*.py")):
            if path.stem.endswith("settings"):
                continue
            for text in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
                for node in ast.walk(text) if isinstance(text, ast.JoinedStr) else ():
                    if isinstance(node, ast.Attribute) and ast.unparse(node.value) == "limits":
                        yield node.attr


def test_limits_that_requests_are_refused_with_are_listed():
    named = set(re.findall(r"^\| `(\w+)`", LIMITS, re.MULTILINE))
    told = set(limits_in_messages())
    assert "STREAMS_PER_REQUEST_MAX" in told
    assert told - named == set()


def test_limits_that_are_named_anywhere_exist():
    for name in re.findall(r"`([A-Z]+_[A-Z_]+)`", TEXT + LIMITS):
        assert name in KNOWN_LIMITS, name


def test_every_requirement_is_a_rule_with_a_name_of_its_own():
    assert None not in rules()
    assert len(set(rules())) == len(rules()) > 20


def test_every_rule_has_a_conformance_test_and_every_test_a_rule_that_exists():
    checked = list(checked_rules())
    assert set(rules()) - {rule for _, rule in checked} == set()
    assert [(name, rule) for name, rule in checked if rule not in rules()] == []


def test_every_conformance_test_says_what_it_checks():
    assert [name for name, docstring in conformance_tests() if not docstring] == []


def test_the_versions_of_files_are_those_of_the_code():
    rows = re.findall(r"^\| [^|]+ \| ([^|]+) \| ([^|]+) \| `(sbp_\S+)` \|$", FILES, re.MULTILINE)
    versions = {Path(module).stem: (version, older) for version, older, module in rows}
    assert versions["segment_format"][0] == str(SEGMENT_VERSION)
    assert versions["index_file"][0] == (
        f"{INDEX_VERSION}, or {REPLICA_INDEX_VERSION} if a range is replicated"
    )
    assert versions["boundaries"][0] == str(boundaries._VERSION)
    schema, older = versions["tables"]
    assert schema == str(SCHEMA_VERSION)
    assert older.startswith(f"{SCHEMA_VERSION_BEFORE},")
    newest, older = versions["offsets"]
    assert newest.startswith(f"{offsets.FORMAT_VERSION}, or {offsets._PLAIN_VERSION} ")
    assert set(re.findall(r"\d+", older)) == {
        str(version) for version in offsets._OPTIONAL_KEYS if version < offsets.FORMAT_VERSION
    }


def test_every_kind_of_entry_is_listed():
    rows = re.findall(r"^\| (\d+) \| ([A-Z_]+) \|", FILES, re.MULTILINE)
    assert rows == [(str(int(kind)), kind.name) for kind in EntryKind]
