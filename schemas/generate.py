"""Turn the FlatBuffers schemas into the committed Python of sbp_core/wire/_generated.py.

flatc compiles a schema to its binary reflection form; this script reads that with the project's
own FlatBuffers reader, and prints a frozen struct per table, the layout that the codec follows, and
for the tables in HOT a function that writes them in a straight line.

    python schemas/generate.py            regenerate in place
    python schemas/generate.py --check    exit 1 when the committed files differ
"""

from __future__ import annotations

import argparse
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

from msgspec import Struct

from sbp_core.wire.flat import Bytes, Field, Kind, Scalar, Schema, Table, Text, Vector, kinds
from sbp_core.wire.flat.writer import in_order, place_fields

SCHEMAS = Path(__file__).parent
TARGET = SCHEMAS.parent / "sbp_core" / "wire" / "_generated.py"
FLATC_MISSING = (
    "flatc is not installed: it compiles the FlatBuffers schemas (only to regenerate or check the"
    " generated code, never at run time). Install it, e.g. `apt-get install flatbuffers-compiler`"
    " or `brew install flatbuffers`, and run this again."
)

# The part of FlatBuffers' own reflection schema that is needed here.


class ReflectedType(Struct, frozen=True, gc=False):
    base_type: int = 0
    element: int = 0
    index: int = -1


class ReflectedField(Struct, frozen=True, gc=False):
    name: str = ""
    type: ReflectedType = ReflectedType()
    id: int = 0
    default_integer: int = 0


class ReflectedObject(Struct, frozen=True, gc=False):
    name: str = ""
    fields: tuple[ReflectedField, ...] = ()
    documentation: tuple[str, ...] = ()


class ReflectedEnumValue(Struct, frozen=True, gc=False):
    name: str = ""
    value: int = 0


class ReflectedEnum(Struct, frozen=True, gc=False):
    name: str = ""
    values: tuple[ReflectedEnumValue, ...] = ()


class ReflectedAttribute(Struct, frozen=True, gc=False):
    key: str = ""
    value: str = ""


class ReflectedCall(Struct, frozen=True, gc=False):
    name: str = ""
    request: ReflectedObject = ReflectedObject()
    response: ReflectedObject = ReflectedObject()
    attributes: tuple[ReflectedAttribute, ...] = ()


class ReflectedService(Struct, frozen=True, gc=False):
    name: str = ""
    calls: tuple[ReflectedCall, ...] = ()
    documentation: tuple[str, ...] = ()


class ReflectedSchema(Struct, frozen=True, gc=False):
    objects: tuple[ReflectedObject, ...] = ()
    enums: tuple[ReflectedEnum, ...] = ()
    services: tuple[ReflectedService, ...] = ()


REFLECTION = Schema(
    {
        ReflectedType: (
            Field("base_type", 0, Scalar("b"), 0),
            Field("element", 1, Scalar("b"), 0),
            Field("index", 2, Scalar("i"), -1),
        ),
        ReflectedField: (
            Field("name", 0, Text()),
            Field("type", 1, Table("ReflectedType")),
            Field("id", 2, Scalar("H"), 0),
            Field("default_integer", 4, Scalar("q"), 0),
        ),
        ReflectedObject: (
            Field("name", 0, Text()),
            Field("fields", 1, Vector(Table("ReflectedField"))),
            Field("documentation", 6, Vector(Text())),
        ),
        ReflectedEnumValue: (Field("name", 0, Text()), Field("value", 1, Scalar("q"), 0)),
        ReflectedEnum: (
            Field("name", 0, Text()),
            Field("values", 1, Vector(Table("ReflectedEnumValue"))),
        ),
        ReflectedAttribute: (Field("key", 0, Text()), Field("value", 1, Text())),
        ReflectedCall: (
            Field("name", 0, Text()),
            Field("request", 1, Table("ReflectedObject")),
            Field("response", 2, Table("ReflectedObject")),
            Field("attributes", 3, Vector(Table("ReflectedAttribute"))),
        ),
        ReflectedService: (
            Field("name", 0, Text()),
            Field("calls", 1, Vector(Table("ReflectedCall"))),
            Field("documentation", 3, Vector(Text())),
        ),
        ReflectedSchema: (
            Field("objects", 0, Vector(Table("ReflectedObject"))),
            Field("enums", 1, Vector(Table("ReflectedEnum"))),
            Field("services", 5, Vector(Table("ReflectedService"))),
        ),
    }
)

SECRET_FIELDS = {"auth_token", "server_secret", "Feature.data"}
"""Fields that are never shown; the data of a feature may be a token."""

HOT: dict[str, tuple[str, tuple[str, ...]]] = {
    "Status": ("", ("handler_duration_us",)),
    "StreamRange": ("stream_id range_index", ("start_offset", "end_offset")),
    "AppendInfo": ("stream_range batch_length stream_id", ("request_index", "writer_id sequence")),
    "AppendRequest": ("timeout_ms append_requests", ()),
    "AppendResult": ("stream_id base_offset stream_append_time_ms status", ("request_index",)),
    "AppendResponse": ("append_responses status", ()),
    "FetchInfo": (
        "stream_range fetch_offset batch_max_bytes stream_id",
        ("request_index", "end_offset"),
    ),
    "FetchRequest": ("max_wait_ms min_bytes fetch_requests timeout_ms", ()),
    "FetchResult": (
        "stream_id batch_count status batch_length next_offset",
        ("request_index",),
    ),
    "FetchResponse": ("fetch_responses status", ()),
}
"""Tables that are written in a straight line: the fields that they have then, and groups of fields
of which each is present or absent as a whole. With any other fields they are written as all are."""

_KIND_NAMES: dict[Kind, str] = {
    kinds.BOOL: "BOOL",
    kinds.I8: "I8",
    kinds.I16: "I16",
    kinds.I32: "I32",
    kinds.I64: "I64",
    kinds.TEXT: "TEXT",
    kinds.BYTES: "BYTES",
}
_SCALAR_CODES = {2: "?", 3: "b", 4: "B", 5: "h", 6: "H", 7: "i", 8: "I", 9: "q"}
_UBYTE, _STRING, _VECTOR, _OBJECT = 4, 13, 14, 15


def compile_schema(source: Path) -> ReflectedSchema:
    """Compile a .fbs file with flatc and return its reflection."""
    flatc = shutil.which("flatc")
    if flatc is None:
        raise SystemExit(FLATC_MISSING)
    with tempfile.TemporaryDirectory() as folder:
        subprocess.run(
            [flatc, "--binary", "--schema", "--bfbs-comments", "-o", folder, str(source)],
            check=True,
        )
        compiled = (Path(folder) / source.with_suffix(".bfbs").name).read_bytes()
    return REFLECTION.decode(ReflectedSchema, compiled)


def render() -> str:
    """Return the Python module of all schema files."""
    lines = [
        '"""Generated from schemas/*.fbs by schemas/generate.py. Do not edit."""',
        "",
        "from __future__ import annotations",
        "",
        "import enum",
        "import struct",
        "from collections.abc import Mapping",
        "from typing import Any, Final",
        "",
        "from msgspec import Struct",
        "",
        "from sbp_core.wire.flat import Field, Kind, Table, Vector, fields_of, repr_without",
        "from sbp_core.wire.flat.kinds import BOOL, BYTES, I16, I32, I64, I8, TEXT",
        "from sbp_core.wire.flat.writer import MISFIT, Writer, WriteValue, put_u32",
        "",
    ]
    layouts: dict[str, list[Field]] = {}
    for schema in map(compile_schema, sorted(SCHEMAS.glob("*.fbs"))):
        for enum_ in schema.enums:
            lines += ["", f"class {_short(enum_.name)}(enum.IntEnum):"]
            lines += [f"    {item.name} = {item.value}" for item in enum_.values]
            lines += [""]
        whole = [obj for obj in schema.objects if obj.fields]
        for obj in sorted(whole, key=lambda obj: _depth(schema, obj)):
            lines += _render_table(schema, obj)
            assert _short(obj.name) not in layouts
            layouts[_short(obj.name)] = _fields(schema, obj)
        for service in schema.services:
            lines += _render_service(service)
    lines += ["", "_KINDS: Final[Mapping[type[Struct], tuple[Kind, ...]]] = {"]
    for table, fields in layouts.items():
        assert [field.id for field in fields] == [*range(len(fields))], table
        listed = ", ".join(_render_kind(each.kind) for each in fields)
        lines += [f"    {table}: ({listed}{',' * (len(fields) == 1)}),"]
    lines += [
        "}",
        "LAYOUTS: Final[Mapping[type[Struct], tuple[Field, ...]]] = {",
        "    table: fields_of(table, kinds) for table, kinds in _KINDS.items()",
        "}",
        "",
    ]
    for table in HOT:
        lines += _render_writer(table, layouts[table])
    lines += ["", "WRITERS: Final[Mapping[type[Struct], WriteValue]] = {"]
    lines += [f"    {table}: {_writer_name(table)}," for table in HOT]
    lines += ["}", '"""Functions that write the hot tables."""', ""]
    return _format("\n".join(lines))


def _short(name: str) -> str:
    """Return a name without its namespace."""
    return name.rsplit(".", 1)[1]


def _depth(schema: ReflectedSchema, obj: ReflectedObject) -> int:
    return 1 + max(
        (
            _depth(schema, schema.objects[field.type.index])
            for field in obj.fields
            if _OBJECT in (field.type.base_type, field.type.element)
        ),
        default=0,
    )


def _render_table(schema: ReflectedSchema, obj: ReflectedObject) -> list[str]:
    name = _short(obj.name)
    lines = ["", f"class {name}(Struct, frozen=True, gc=False):"]
    if obj.documentation:
        documentation = " ".join(line.strip() for line in obj.documentation)
        lines += [f'    """{documentation}"""', ""]
    for field in sorted(obj.fields, key=lambda item: item.id):
        lines += [f"    {field.name}: {_render_annotation(schema, field)}"]
    secret = [
        field.name for field in obj.fields if SECRET_FIELDS & {field.name, f"{name}.{field.name}"}
    ]
    if secret:
        lines += [
            "",
            "    def __repr__(self) -> str:",
            '        """Return the fields, but for secrets."""',
            f"        return repr_without(self, {sorted(secret)})",
        ]
    return [*lines, ""]


def _render_service(service: ReflectedService) -> list[str]:
    """Return the opcodes, what is special about some, and the tables of those that have tables."""
    name = _short(service.name)
    calls = {
        call.name: {each.key: each.value for each in call.attributes} for call in service.calls
    }
    tables = [
        f"{name}.{call.name}: ({_short(call.request.name)}, {_short(call.response.name)}),"
        for call in service.calls
        if call.request.fields
    ]
    with_payload = ", ".join(f"{name}.{call}" for call in calls if "payload" in calls[call])
    return [
        "",
        f"class {name}(enum.IntEnum):",
        f'    """{" ".join(line.strip() for line in service.documentation)}"""',
        "",
        *(f"    {call} = {calls[call]['opcode']}" for call in calls),
        "",
        "",
        f"WITH_PAYLOAD: Final = frozenset({{{with_payload}}})",
        '"""Operations whose requests have a payload."""',
        f"OPERATIONS: Final[Mapping[{name}, tuple[type[Struct], type[Struct]]]] = {{",
        *tables,
        "}",
        '"""The tables of request and response. Other operations have headers without meaning."""',
        "",
    ]


def _table_name(schema: ReflectedSchema, field: ReflectedField) -> str:
    return _short(schema.objects[field.type.index].name)


def _render_annotation(schema: ReflectedSchema, field: ReflectedField) -> str:
    kind, element = field.type.base_type, field.type.element
    if kind == _STRING:
        return "str | None = None"
    if kind == _OBJECT:
        return f"{_table_name(schema, field)} | None = None"
    if kind == _VECTOR:
        if element == _UBYTE:
            return 'bytes = b""'
        if element == _STRING:
            return "tuple[str, ...] = ()"
        inner = _table_name(schema, field) if element == _OBJECT else "int"
        return f"tuple[{inner}, ...] = ()"
    if _SCALAR_CODES[kind] == "?":
        return f"bool = {bool(field.default_integer)}"
    return f"int = {field.default_integer}"


def _fields(schema: ReflectedSchema, obj: ReflectedObject) -> list[Field]:
    """Return the layout of a table."""
    fields = []
    for field in sorted(obj.fields, key=lambda item: item.id):
        kind = _kind(schema, field)
        is_bool = kind == Scalar("?")
        default = bool(field.default_integer) if is_bool else field.default_integer
        fields.append(
            Field(field.name, field.id, kind, default if isinstance(kind, Scalar) else None)
        )
    return fields


def _kind(schema: ReflectedSchema, field: ReflectedField) -> Kind:
    kind, element = field.type.base_type, field.type.element
    if kind == _STRING:
        return Text()
    if kind == _OBJECT:
        return Table(_table_name(schema, field))
    if kind == _VECTOR:
        if element == _UBYTE:
            return Bytes()
        if element == _STRING:
            return Vector(Text())
        is_object = element == _OBJECT
        return Vector(
            Table(_table_name(schema, field)) if is_object else Scalar(_SCALAR_CODES[element])
        )
    return Scalar(_SCALAR_CODES[kind])


def _render_kind(kind: Kind) -> str:
    if isinstance(kind, Vector):
        return f"Vector({_render_kind(kind.element)})"
    return f'Table("{kind.name}")' if isinstance(kind, Table) else _KIND_NAMES[kind]


def _writer_name(table: str) -> str:
    return "_write" + "".join(f"_{each.lower()}" if each.isupper() else each for each in table)


def _render_writer(table: str, fields: list[Field]) -> list[str]:
    """Return the constants and the function that write a hot table with its usual fields."""
    always, groups = HOT[table]
    required = always.split()
    optional = [group.split() for group in groups]
    by_name = {field.name: field for field in fields}
    assert {*required, *(name for group in optional for name in group)} <= by_name.keys(), table
    tests = [f"value.__class__ is {table}"]
    for field in fields:
        if field.name in required:
            tests.append(_test(field, f"({field.name} := value.{field.name})", is_present=True))
        elif not any(field.name in group for group in optional):
            tests.append(_test(field, f"value.{field.name}", is_present=False))
    constants: list[str] = []
    body: list[str] = [
        *(f"{name} = value.{name}" for group in optional for name in group),
        "out = writer.out",
    ]

    def branch(present: list[str], rest: list[list[str]], indent: str) -> None:
        if not rest:
            chosen = in_order([field for field in fields if field.name in present])
            body.extend(indent + line for line in _render_leaf(table, chosen, constants))
            return
        group, *others = rest
        for is_present in (True, False):
            condition = " and ".join(
                _test(by_name[name], name, is_present=is_present) for name in group
            )
            is_rest = len(group) == 1 and not is_present
            keyword = "if" if is_present else "elif"
            body.append(f"{indent}else:" if is_rest else f"{indent}{keyword} {condition}:")
            branch([*present, *group] if is_present else present, others, f"{indent}    ")

    branch(required, optional, "")
    return [
        "",
        *constants,
        "",
        f"def {_writer_name(table)}(writer: Writer, value: Any) -> int:",
        "    try:",
        f"        if ({' and '.join(tests)}):",
        *(f"            {line}" for line in body),
        "    except MISFIT:",
        "        pass  # it is raised below, with the name of the field",
        f'    return writer.tables["{table}"].write_any(writer, value)',
        "",
    ]


def _test(field: Field, text: str, *, is_present: bool) -> str:
    """Return the condition for a field that is written, or is not."""
    if isinstance(field.kind, Vector):
        return f"{text} {'!=' if is_present else '=='} ()"
    if isinstance(field.kind, Bytes):
        return f'{text} {"!=" if is_present else "=="} b""'
    if not isinstance(field.kind, Scalar):
        return f"{text} is {'not ' if is_present else ''}None"
    return f"{text} {'!=' if is_present else '=='} {int(field.default or 0)}"


def _render_leaf(table: str, fields: list[Field], constants: list[str]) -> list[str]:
    """Return the lines that write a table with exactly these fields."""
    placed = place_fields(fields)
    name = f"{_writer_name(table).upper()[6:]}_{len(constants) // 2 + 1}"
    constants += [
        f"_V{name} = {placed.vtable!r}",
        f'_P{name} = struct.Struct("{placed.codes}").pack',
    ]
    numbers = [field.name for field in fields if isinstance(field.kind, Scalar)]
    lines = [
        f"at = writer.begin(_V{name}, {placed.is_wide})",
        f"out += _P{name}({', '.join(['writer.distance', *numbers])})",
    ]
    for field in fields:
        place = placed.places[field.name]
        match field.kind:
            case Table(child):
                written = f"{_writer_name(child)}(writer, {field.name})"
            case Vector(Table(child)):
                written = f"writer.write_vector({field.name}, {_writer_name(child)})"
            case Text():
                written = f"writer.write_text({field.name})"
            case _ if isinstance(field.kind, Scalar):
                continue
            case _:
                raise SystemExit(f"{table}.{field.name}: a field of this kind cannot be hot")
        lines.append(f"put_u32(out, at + {place}, {written} - at - {place})")
    return [*lines, "return at"]


def _format(text: str) -> str:
    return _ruff(_ruff(text, "check", "--fix", "--quiet"), "format")


def _ruff(text: str, *arguments: str) -> str:
    command = [sys.executable, "-m", "ruff", *arguments, "--stdin-filename", str(TARGET)]
    return subprocess.run(
        [*command, "-"], input=text, capture_output=True, text=True, check=True
    ).stdout


def main() -> int:
    """Regenerate, or compare with --check; return the exit status."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--check", action="store_true", help="compare only, write nothing")
    arguments = parser.parse_args()
    text = render()
    if not arguments.check:
        TARGET.write_text(text)
    elif not TARGET.exists() or TARGET.read_text() != text:
        print(f"{TARGET.name} is out of date; run `make schemas` and commit the result")
        return 1
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
