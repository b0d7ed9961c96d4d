"""The streams that rows are written to: found or created by name, and the schemas of typed ones.

Missing streams are created if the options say so. Streams that options name are created before the
first row comes.
"""

from __future__ import annotations

import logging
from collections.abc import Collection, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Final

from sbp_core.client import Client, SchemaVersion, StreamInfo, newest_schemas
from sbp_core.errors import (
    AlreadyExistsError,
    ConfigurationError,
    NotFoundError,
    SbpError,
    SchemaError,
    UnsupportedError,
)
from sbp_core.records import Change, Comparison, StreamSchema, compare_schemas
from sbp_core.wording import listed
from sbp_spark.client_pool import Patience, client_for, first_contact
from sbp_spark.options.sink import SinkOptions
from sbp_spark.options.sink_targets import Creation
from sbp_spark.options.stream_selection import FoundStream, StreamRef, find_ids, parse_stream_ref

_LOG: Final = logging.getLogger(__name__)

ON_BAD_RECORD: Final = "option onBadRecord"
"""The option that names the stream of dead letters."""


@dataclass(frozen=True, slots=True)
class TypedStream:
    """A stream as options name it, and the schema that it is written in."""

    name: str
    schema: StreamSchema


def typed_error(names: Sequence[str], where: str) -> ConfigurationError:
    """Return the error of plain records for typed streams, which were named `where`."""
    message = f"{where}: stream {listed(list(map(repr, names)))} has a schema"
    if where == ON_BAD_RECORD:
        return ConfigurationError(
            f"{message}, but dead letters are plain records; name a stream without one"
        )
    return ConfigurationError(
        f"{message}, so columns are written to it, not plain records; set encoding=columns, or"
        " name a stream without a schema"
    )


def check_still_plain(client: Client, stream_ids: Collection[int]) -> None:
    """Raise SchemaError if a stream has got a schema since plain records were staged for it."""
    typed = newest_schemas(client, stream_ids)
    if typed:
        raise SchemaError(
            f"stream {listed(list(typed))} (by id) has got a schema since plain records were staged"
            " for it, and the two do not mix, so nothing is committed; write columns to it, or"
            " write these records to another stream"
        )


def evolve_streams(
    client: Client,
    streams: Mapping[int, str],
    given: StreamSchema,
    *,
    may_change: bool,
) -> dict[int, TypedStream]:
    """Let columns of `given` fit into streams, names by id: those without a schema get this one.

    A schema that lacks some of it grows if it `may_change`. Where columns may be null that a stream
    requires, and that is all, it need not: rows are looked at one by one. Return the streams, which
    take all of the columns. Raises SchemaError, and has changed nothing if that was to be foreseen.
    """
    found = {}
    try:
        described = newest_schemas(client, streams, is_required=True)
    except UnsupportedError as error:
        raise ConfigurationError(
            f"option encoding: the placement driver knows no schemas ({error}); upgrade it, or"
            " write plain records with encoding=rows"
        ) from error
    untyped = [stream_id for stream_id in streams if stream_id not in described]
    _check_empty(client, untyped, streams)
    for stream_id, version in described.items():
        _compare(streams[stream_id], version, given, may_change=may_change)
    for stream_id, name in streams.items():
        newest = described.get(stream_id) or client.register_schema(stream_id, given, version=1)
        compared = _compare(name, newest, given, may_change=may_change)
        if may_change and compared.differences:
            newest = client.evolve_schema(stream_id, given, may_change=True)
        found[stream_id] = TypedStream(name, newest.schema)
    return found


def _check_empty(client: Client, stream_ids: Sequence[int], names: Mapping[int, str]) -> None:
    """Raise SchemaError if any of the streams, which have no schema, has records."""
    bounds = client.stream_bounds(stream_ids) if stream_ids else []
    full = [repr(names[each.stream_id]) for each in bounds if each.next_offset > each.start_offset]
    if full:
        raise SchemaError(
            f"stream {listed(full)} has plain records and no schema, and the two do not mix; create"
            " another stream for columns, or trim this one to its end"
        )


def _compare(
    name: str, newest: SchemaVersion, given: StreamSchema, *, may_change: bool
) -> Comparison:
    compared = compare_schemas(newest.schema, given)
    if compared.faults:
        remedy = (
            "Lines with ! never fit, except for a missing column: with mergeSchema=true it becomes"
            " nullable"
        )
    elif may_change or all(each.change is Change.RELAXED for each in compared.differences):
        return compared
    else:
        remedy = "To let its schema change in this way, set mergeSchema=true"
    lines = "\n".join(f"  {each}" for each in compared.differences)
    raise SchemaError(
        f"stream {name!r} does not accept these columns as they are; its schema, version"
        f" {newest.version}, differs:\n{lines}\n{remedy}"
    )


class StreamDirectory:
    """Looks up each name or id once. `where` names the options or columns that have them.

    Plain records cannot go to a stream with a schema. `found` maps names to the streams that had
    them before: a name means that stream as long as it exists. `planned` maps the names in the
    options to ids that are known already.
    """

    def __init__(
        self,
        client: Client,
        creation: Creation | None,
        where: str,
        *,
        is_for_columns: bool = False,
        found: Mapping[str, FoundStream] | None = None,
        planned: Mapping[str, int] | None = None,
    ) -> None:
        self._client = client
        self._is_for_columns = is_for_columns
        self._creation = creation
        self._where = where
        self._found = found or {}
        self._ids: dict[str, int] = dict(planned or {})
        self._seen: dict[int, FoundStream] = {}
        self._faults: dict[str, SbpError] = {}

    def maybe_id(self, text: str) -> int | None:
        """Return the id of a stream that was looked up; None if there is none: see `fault`."""
        return self._ids.get(text)

    def fault(self, text: str) -> SbpError:
        """Return the fault of a name or id that was looked up."""
        return self._faults[text]

    def ids_of(self, texts: Sequence[str]) -> list[int]:
        """Return the ids of streams that have to exist. Raises SbpError."""
        self.look_up(texts)
        for text in texts:
            if text in self._faults:
                raise self._faults[text]
        return [self._ids[text] for text in texts]

    def find(self, texts: Sequence[str]) -> dict[str, FoundStream]:
        """Return streams that have to exist, by their names or ids. Raises SbpError."""
        return {
            text: self._seen[each] for text, each in zip(texts, self.ids_of(texts), strict=True)
        }

    def look_up(self, texts: Iterable[str], where: str | None = None) -> None:
        """Find out about names and ids that were not looked up before, in as few calls as can be.

        `where` they are, unless that is where all are. Raises SbpError without an answer, or if a
        stream cannot be created.
        """
        where = where or self._where
        refs = []
        for text in texts:
            if text not in self._ids and text not in self._faults:
                try:
                    refs.append(parse_stream_ref(text))
                except ConfigurationError as error:
                    self._faults[text] = ConfigurationError(f"{where}: {error}")
        if refs:
            self._describe(refs, where)
            if not self._is_for_columns:
                self._refuse_typed([ref.text for ref in refs], where)

    def _describe(self, refs: list[StreamRef], where: str) -> None:
        self._ids |= self._find(refs)
        missing = [ref for ref in refs if ref.text not in self._ids]
        if missing and self._creation is not None:
            create_missing(self._client, missing, self._creation)
            self._ids |= self._find(missing)
            missing = [ref for ref in missing if ref.text not in self._ids]
        if missing:
            named = listed([f"stream {ref.text!r}" for ref in missing])
            error = NotFoundError.of(
                f"{where}: not found: {named}; set createStreams=true, or create"
                f" {'it' if len(missing) == 1 else 'them'} with `sbp streams create NAME`"
            )
            self._faults |= {ref.text: error for ref in missing}

    def _find(self, refs: Sequence[StreamRef]) -> dict[str, int]:
        """Return the ids of those streams that exist."""
        found = [self._found[ref.text].stream_id for ref in refs if ref.text in self._found]
        infos = self._client.find_streams([*(ref.key for ref in refs), *found])
        self._seen |= {info.stream_id: FoundStream.of(info) for info in infos}
        ids = find_ids(infos, self._found)
        return {ref.text: ids[ref.text] for ref in refs if ref.text in ids}

    def _refuse_typed(self, texts: Iterable[str], where: str) -> None:
        """Take streams with a schema for faults."""
        found = {text: self._ids[text] for text in texts if text in self._ids}
        typed = newest_schemas(self._client, sorted(set(found.values())))
        for text, stream_id in found.items():
            if stream_id in typed:
                del self._ids[text]
                self._faults[text] = typed_error([text], where)


def create_missing(client: Client, refs: Iterable[StreamRef], creation: Creation) -> None:
    """Create the streams that are given by name, unless they exist by now.

    Logs a warning if they get fewer replicas than they are to have. Raises SbpError.
    """
    created: list[StreamInfo] = []
    for name in (ref.key for ref in refs):
        if isinstance(name, str):
            with suppress(AlreadyExistsError):
                created += client.create_streams([creation.spec(name)])
    missing = client.explain_missing(creation.replica_count) if created else None
    if missing is not None:
        _LOG.warning("streams %s: %s", listed([each.label for each in created]), missing)


def find_targets(options: SinkOptions) -> dict[str, FoundStream]:
    """Return the streams that options name, by the text of the option.

    Missing streams are created if the options say so. The stream of dead letters must be plain.
    Raises SbpError, also if no stream is named and the endpoint does not answer.
    """
    with first_contact(options.servers) as client:
        client.metadata_changes()
    client = client_for(options.servers, Patience.RUNNING)
    has_columns = options.columns is not None
    where = options.targets.where
    directory = StreamDirectory(client, options.creation, where, is_for_columns=has_columns)
    targets = directory.find([ref.text for ref in options.targets.refs])
    ref = options.bad_records.dead_letters
    of_letters = StreamDirectory(client, options.creation, ON_BAD_RECORD)
    letters = {} if ref is None else of_letters.find([ref.text])
    both = [repr(name) for name, each in targets.items() if each in letters.values()]
    if both and has_columns:
        raise ConfigurationError(
            f"option onBadRecord: stream {listed(both)} is for columns, but dead letters are"
            " plain records; name another stream"
        )
    return targets | letters


@dataclass(frozen=True, slots=True)
class PlannedTargets:
    """The streams that options name, as a plan found them, so that tasks need not ask again.

    `ids` maps names in the options to ids; `typed` maps ids of streams for columns to them.
    """

    ids: Mapping[str, int]
    typed: Mapping[int, TypedStream]


def plan_targets(options: SinkOptions, schema: StreamSchema | None = None) -> PlannedTargets:
    """Return the streams that options name, as they are now, for the tasks of one plan.

    Streams that were found before are meant also after they were renamed. Raises SbpError.
    """
    refs = options.targets.refs
    if not refs:
        return PlannedTargets({}, {})
    client = client_for(options.servers, Patience.RUNNING)
    directory = StreamDirectory(
        *(client, options.creation, options.targets.where),
        is_for_columns=schema is not None,
        found=options.found,
    )
    texts = [ref.text for ref in refs]
    ids = dict(zip(texts, directory.ids_of(texts), strict=True))
    if schema is None:
        return PlannedTargets(ids, {})
    assert options.columns is not None
    names = {stream_id: text for text, stream_id in ids.items()}
    typed = evolve_streams(client, names, schema, may_change=options.columns.is_merging)
    return PlannedTargets(ids, typed)


def purpose_of(options: SinkOptions) -> str:
    """Return a text that differs between sinks for which `find_targets` differs."""
    named = (options.targets.refs, options.bad_records.dead_letters, options.creation)
    return repr((named, options.columns is not None))
