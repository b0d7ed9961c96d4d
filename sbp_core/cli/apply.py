"""`sbp apply`: streams and rights as a file says them, so that they can be kept with the code."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final

import click
import msgspec

from sbp_core import limits
from sbp_core.access.identity import parse_subject
from sbp_core.access.rights import Grant, checked_grant
from sbp_core.cli.commands import Command
from sbp_core.cli.connect import checked_new_name, connect
from sbp_core.cli.options import PATH, ClientOptions, client_options
from sbp_core.cli.output import one_line, write_json, write_line
from sbp_core.errors import ConfigurationError, InvalidRequestError, SchemaError
from sbp_core.properties import PROPERTIES_MAX, checked_properties
from sbp_core.quantities import parse_duration_ms, parse_size, show_duration, show_size
from sbp_core.regular_files import read_regular
from sbp_core.wording import counted

if TYPE_CHECKING:
    from sbp_core.client import Client, StreamInfo, StreamSpec
    from sbp_core.records import StreamSchema

_Copies = Annotated[int, msgspec.Meta(ge=1, le=limits.REPLICAS_MAX)]
_FIELDS: Final[Mapping[str, tuple[str, Callable[[int], str]]]] = {
    "replica_count": ("replicas", str),
    "ack_count": ("ack_count", str),
    "retention_period_ms": ("retention", show_duration),
    "retention_bytes": ("retention_size", show_size),
}
"""A stream's settings, as the client calls them: their keys in the file, and how to show them."""


def _maybe(parse: Callable[[str], int], text: str | None) -> int | None:
    return None if text is None else parse(text)


class _Stream(msgspec.Struct, forbid_unknown_fields=True, frozen=True):
    """A stream of the file. Settings that are left out stay, or have their defaults."""

    replicas: _Copies | None = None
    ack_count: _Copies | None = None
    retention: str | None = None
    retention_size: str | None = None
    columns: list[str] | None = None
    properties: dict[str, str] | None = None

    def settings(self) -> dict[str, Any]:
        """Return its settings, as the client calls them. Raises ConfigurationError."""
        found = {
            "replica_count": self.replicas,
            "ack_count": self.ack_count,
            "retention_period_ms": _maybe(parse_duration_ms, self.retention),
            "retention_bytes": _maybe(parse_size, self.retention_size),
        }
        return {name: value for name, value in found.items() if value is not None}


class _Grant(msgspec.Struct, forbid_unknown_fields=True, frozen=True):
    subject: str
    right: str
    pattern: str

    def checked(self) -> Grant:
        """Return the grant. Raises ConfigurationError."""
        try:
            parse_subject(self.subject)
            return checked_grant(self.subject, self.right, self.pattern)
        except (ValueError, InvalidRequestError) as error:
            raise ConfigurationError(f"the grant to {self.subject!a}: {error}") from error


class _File(msgspec.Struct, forbid_unknown_fields=True, frozen=True):
    streams: dict[str, dict[str, Any]] = {}
    grants: list[_Grant] = []


@dataclass(frozen=True, slots=True)
class _Change:
    """A difference between the file and the cluster, and the call that removes it."""

    text: str
    value: Mapping[str, Any]
    make: Callable[[Client], object]


@click.command("apply", cls=Command, example="sbp apply streams.toml --dry-run")
@click.argument("file", type=PATH, help="TOML with streams and grants.")
@click.option("--dry-run", is_flag=True, help="Only show what would change.")
@client_options
def apply(options: ClientOptions, file: str, *, dry_run: bool) -> int:
    """Create and change streams, and grant rights, as FILE says.

    A stream is a table [streams.NAME] with replicas, ack_count, retention, retention_size, columns
    and properties; a grant is one of [[grants]] with subject, right and pattern. Settings that a
    stream leaves out stay as they are, and streams that are not in the file are left alone.
    Subjects in the file keep only the grants that it has, and streams with a table of properties
    only these. A file may be applied again.

    Everything is checked before anything is changed. Quotas are settings of the servers.
    """
    streams, grants = _read(Path(file))
    with connect(options) as client:
        changes = [*_stream_changes(client, streams), *_grant_changes(client, grants)]
        for each in changes:
            if not dry_run:
                each.make(client)
            if options.json:
                write_json({**each.value, "done": not dry_run})
            else:
                write_line(each.text)
    if not options.json:
        done = "nothing is changed yet" if dry_run else "done"
        write_line(f"{counted(len(changes), 'change')}{f': {done}' if changes else ''}")
    return 0


def _read(path: Path) -> tuple[dict[str, _Stream], list[_Grant]]:
    at = f"{path}"
    streams: dict[str, _Stream] = {}
    try:
        text = read_regular(path, limits.SMALL_FILE_BYTES_MAX).decode("utf-8")
        found = msgspec.toml.decode(text, type=_File)
        for name, table in found.streams.items():
            at = f"{path}: stream {one_line(name)}"
            streams[name] = msgspec.convert(table, _Stream)
    except OSError as error:
        raise ConfigurationError(f"{at}: {error.strerror}") from error
    except ValueError as error:  # also what is no TOML, or has other keys
        raise ConfigurationError(f"{at}: {error}") from error
    return streams, found.grants


def _stream_changes(client: Client, wanted: Mapping[str, _Stream]) -> Iterator[_Change]:
    from sbp_core.client import StreamSpec, newest_schemas

    known = {each.name: each for each in client.find_streams([*map(checked_new_name, wanted)])}
    schemas = newest_schemas(client, [each.stream_id for each in known.values()])
    with_properties = [name for name, each in wanted.items() if each.properties is not None]
    properties = client.describe_properties(
        [known[name].stream_id for name in with_properties if name in known]
    )
    for name, stream in wanted.items():
        try:
            settings, info = stream.settings(), known.get(name)
        except ConfigurationError as error:
            raise ConfigurationError(f"stream {name}: {error}") from error
        if info is None:
            text = f"+ stream {name} {_shown(settings)}".rstrip()
            spec = StreamSpec(name, **settings)
            yield _Change(text, {"create": name, **settings}, partial(_create, spec))
        else:
            yield from _updates(info, settings)
        if stream.properties is not None:
            known_ones = {} if info is None else properties[info.stream_id]
            yield from _property_changes(name, known_ones, stream.properties)
        if stream.columns is not None:
            version = None if info is None else schemas.get(info.stream_id)
            newest = None if version is None else version.schema
            yield from _schema_changes(name, newest, stream.columns)


def _create(spec: StreamSpec, client: Client) -> None:
    client.create_streams([spec])


def _updates(info: StreamInfo, settings: Mapping[str, Any]) -> Iterator[_Change]:
    from sbp_core.client import StreamUpdate

    changed = {name: each for name, each in settings.items() if getattr(info, name) != each}
    if changed:
        before = _shown({name: getattr(info, name) for name in changed})
        update = StreamUpdate(info.stream_id, **changed)
        yield _Change(
            f"~ stream {info.label} {before} -> {_shown(changed)}",
            {"update": info.label, **changed},
            lambda client: client.update_streams([update]),
        )


def _property_changes(
    name: str, known: Mapping[str, str], wanted: Mapping[str, str]
) -> Iterator[_Change]:
    """Yield the change of a stream's properties, if there is one: others are removed."""
    from sbp_core.client import StreamUpdate

    try:
        checked_properties(wanted.items(), PROPERTIES_MAX)
    except InvalidRequestError as error:
        raise ConfigurationError(f"stream {name}: {error.message}") from error
    changed: dict[str, str | None] = {
        key: wanted.get(key)
        for key in sorted(known.keys() | wanted.keys())
        if known.get(key) != wanted.get(key)
    }
    if changed:
        texts = [
            f"- property {one_line(key)}"
            if value is None
            else f"{'~' if key in known else '+'} property {one_line(key)}={one_line(value)}"
            for key, value in changed.items()
        ]
        update = StreamUpdate(name, properties=changed)
        yield _Change(
            f"~ stream {name} {', '.join(texts)}",
            {"update": name, "properties": changed},
            lambda client: client.update_streams([update]),
        )


def _schema_changes(
    name: str, newest: StreamSchema | None, columns: list[str]
) -> Iterator[_Change]:
    """Yield the change of a stream's columns, if there is one."""
    from sbp_core.records import compare_schemas, merge_schemas
    from sbp_core.records.column_text import parse_columns

    def evolve(client: Client) -> None:
        (info,) = client.describe_streams([name])
        client.evolve_schema(info.stream_id, wanted, may_change=True)

    try:
        wanted = parse_columns(columns)
        texts = [f"+ {each}" for each in columns]
        if newest is not None:
            merge_schemas(newest, wanted)
            texts = list(map(str, compare_schemas(newest, wanted).differences))
    except SchemaError as error:
        raise ConfigurationError(f"stream {name}: {error}") from error
    if texts:
        text = f"~ stream {name} {', '.join(texts)}"
        yield _Change(text, {"schema": name, "differences": texts}, evolve)


def _grant_changes(client: Client, wanted: list[_Grant]) -> Iterator[_Change]:
    grants = {each.checked() for each in wanted}
    if not grants:
        return
    subjects = {each.subject for each in grants}
    known = {each for each in client.list_grants() if each.subject in subjects}
    for sign, verb, changed in (("+", "grant", grants - known), ("-", "revoke", known - grants)):
        for each in sorted(changed, key=_order):
            yield _Change(
                f"{sign} {one_line(each.subject)} {each.right} {each.pattern}",
                {verb: each.subject, "right": each.right, "pattern": each.pattern},
                partial(_change_grant, each, is_revoked=verb == "revoke"),
            )


def _change_grant(grant: Grant, client: Client, *, is_revoked: bool) -> None:
    client.change_grants([grant], is_revoked=is_revoked)


def _order(grant: Grant) -> tuple[str, str, str]:
    return grant.subject, str(grant.right), grant.pattern


def _shown(settings: Mapping[str, int]) -> str:
    fields = ((_FIELDS[name], value) for name, value in settings.items())
    return " ".join(f"{key}={show(value)}" for (key, show), value in fields)
