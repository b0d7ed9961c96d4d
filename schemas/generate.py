"""Turn the FlatBuffers schemas into the committed Python of sbp_core/wire/_generated.

flatc compiles a schema to its binary reflection form; this script reads that with the project's
own FlatBuffers reader and prints a frozen struct per table and the layout the codec follows.

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

from sbp_core.wire.flat import Field, Scalar, Schema, Table, Text, Vector

SCHEMAS = Path(__file__).parent
TARGET = SCHEMAS.parent / "sbp_core" / "wire" / "_generated"
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


class ReflectedSchema(Struct, frozen=True, gc=False):
    objects: tuple[ReflectedObject, ...] = ()
    enums: tuple[ReflectedEnum, ...] = ()


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
        ReflectedSchema: (
            Field("objects", 0, Vector(Table("ReflectedObject"))),
            Field("enums", 1, Vector(Table("ReflectedEnum"))),
        ),
    }
)

SECRET_FIELDS = {"auth_token", "server_secret"}
"""Fields that are never shown."""

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


def render(source: Path) -> str:
    """Return the Python module for one schema file."""
    schema = compile_schema(source)
    tables = {obj.name: obj.name.rsplit(".", 1)[1] for obj in schema.objects}
    names = [tables[obj.name] for obj in schema.objects]
    ordered = sorted(schema.objects, key=lambda obj: _depth(schema, obj))
    lines = [
        f'"""Generated from schemas/{source.name} by schemas/generate.py. Do not edit."""',
        "",
        "from __future__ import annotations",
        "",
        *(["import enum"] if schema.enums else []),
        "from collections.abc import Mapping",
        "from typing import Final",
        "",
        "from msgspec import Struct",
        "",
        "from sbp_core.wire.flat import Field, Octets, Scalar, Table, Text, Vector, repr_without",
        "",
    ]
    for enum_ in schema.enums:
        lines += ["", f"class {enum_.name.rsplit('.', 1)[1]}(enum.IntEnum):"]
        lines += [f"    {item.name} = {item.value}" for item in enum_.values]
        lines += [""]
    for obj in ordered:
        lines += _render_table(schema, obj)
    lines += ["", "LAYOUTS: Final[Mapping[type[Struct], tuple[Field, ...]]] = {"]
    for obj in ordered:
        lines += [f"    {tables[obj.name]}: ("]
        lines += [
            f'        Field("{field.name}", {field.id}, {_render_kind(schema, field)}),'
            for field in sorted(obj.fields, key=lambda item: item.id)
        ]
        lines += ["    ),"]
    lines += ["}", ""]
    exported = [*(item.name.rsplit(".", 1)[1] for item in schema.enums), *names, "LAYOUTS"]
    lines += [f"__all__ = {sorted(exported)}", ""]
    assert len(names) == len(set(names))
    return _format("\n".join(lines))


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
    name = obj.name.rsplit(".", 1)[1]
    lines = ["", f"class {name}(Struct, frozen=True, gc=False):"]
    if obj.documentation:
        documentation = " ".join(line.strip() for line in obj.documentation)
        lines += [f'    """{documentation}"""', ""]
    for field in sorted(obj.fields, key=lambda item: item.id):
        lines += [f"    {field.name}: {_render_annotation(schema, field)}"]
    secret = [field.name for field in obj.fields if field.name in SECRET_FIELDS]
    if secret:
        lines += [
            "",
            "    def __repr__(self) -> str:",
            '        """Return the fields, but for secrets."""',
            f"        return repr_without(self, {sorted(secret)})",
        ]
    return [*lines, ""]


def _table_name(schema: ReflectedSchema, field: ReflectedField) -> str:
    return schema.objects[field.type.index].name.rsplit(".", 1)[1]


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


def _render_kind(schema: ReflectedSchema, field: ReflectedField) -> str:
    kind, element = field.type.base_type, field.type.element
    if kind == _STRING:
        return "Text()"
    if kind == _OBJECT:
        return f'Table("{_table_name(schema, field)}")'
    if kind == _VECTOR:
        if element == _UBYTE:
            return "Octets()"
        if element == _STRING:
            return "Vector(Text())"
        if element == _OBJECT:
            return f'Vector(Table("{_table_name(schema, field)}"))'
        return f'Vector(Scalar("{_SCALAR_CODES[element]}"))'
    default = bool(field.default_integer) if _SCALAR_CODES[kind] == "?" else field.default_integer
    return f'Scalar("{_SCALAR_CODES[kind]}"), {default}'


def _format(text: str) -> str:
    return _ruff(_ruff(text, "check", "--fix", "--quiet"), "format")


def _ruff(text: str, *arguments: str) -> str:
    command = [sys.executable, "-m", "ruff", *arguments, "--stdin-filename", str(TARGET / "x.py")]
    return subprocess.run(
        [*command, "-"], input=text, capture_output=True, text=True, check=True
    ).stdout


def main() -> int:
    """Regenerate, or compare with --check; return the exit status."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--check", action="store_true", help="compare only, write nothing")
    arguments = parser.parse_args()
    stale = []
    for source in sorted(SCHEMAS.glob("*.fbs")):
        target = TARGET / f"{source.stem}.py"
        text = render(source)
        if arguments.check:
            if not target.exists() or target.read_text() != text:
                stale.append(target.name)
        else:
            target.write_text(text)
    if stale:
        print(f"out of date: {', '.join(stale)}; run `make schemas` and commit the result")
    return 1 if stale else 0


if __name__ == "__main__":
    raise SystemExit(main())
