"""The streams that a sink's options name: looked at, or created, before the first row comes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from sbp_core.client import Dialect
from sbp_core.errors import ConfigurationError, NotFoundError
from sbp_core.records import StreamSchema
from sbp_spark.client_pool import Patience, client_for
from sbp_spark.options import Delivery, FoundStream, SinkOptions, StreamRef
from sbp_spark.reading.source_streams import describe_refs, first_contact
from sbp_spark.wording import listed
from sbp_spark.writing.directory import create_missing
from sbp_spark.writing.typed_streams import ON_BAD_RECORD, check_plain, evolve_streams


def find_targets(
    options: SinkOptions, maybe_schema: StreamSchema | None = None
) -> dict[str, FoundStream]:
    """Return the streams that options name, by what they call them.

    Those that do not exist are created, if that is wanted. Columns of a schema have to fit into
    those of the streams, which may get theirs now, and plain records need streams without one.
    Raises SbpError, also where no stream is named and the endpoint does not answer.
    """
    with first_contact(options.servers) as client:
        _check_dialect(client.dialect(), options)
    option = "streams" if len(options.targets.refs) > 1 else "stream"
    targets = _named(options, options.targets.refs, option)
    letters = _named(options, list(filter(None, [options.bad_records.dead_letters])), "onBadRecord")
    with first_contact(options.servers) as client:
        check_plain(client, _by_id(letters), ON_BAD_RECORD)
        if maybe_schema is None or options.maybe_columns is None:
            check_plain(client, _by_id(targets), f"option {option}")
            return targets | letters
        both = [repr(name) for name, each in targets.items() if each in letters.values()]
        if both:
            raise ConfigurationError(
                f"option onBadRecord: stream {listed(both)} is for columns, but dead letters are"
                " plain records; name another stream"
            )
        may_change = options.maybe_columns.is_merging
        evolve_streams(client, _by_id(targets), maybe_schema, may_change=may_change)
        return targets | letters


def purpose_of(options: SinkOptions, maybe_schema: StreamSchema | None = None) -> str:
    """Return a text that tells sinks apart for which `find_targets` does not do the same."""
    named = (options.targets.refs, options.bad_records.dead_letters, options.maybe_creation)
    return repr(
        (
            named,
            options.delivery.delivery,
            options.maybe_columns,
            maybe_schema and maybe_schema.fingerprint,
        )
    )


def _check_dialect(dialect: Dialect, options: SinkOptions) -> None:
    """Raise ConfigurationError for what servers of the dialect cannot do."""
    if dialect is Dialect.SPECIFICATION:
        return
    if options.maybe_columns is not None:
        raise ConfigurationError(
            f"option encoding: the servers speak {dialect}, where streams have no schemas, so no"
            " columns can be written; set encoding=rows, and give each row a value, for example"
            " to_json(struct('*'))"
        )
    if options.delivery.delivery is Delivery.EXACTLY_ONCE:
        raise ConfigurationError(
            f"option delivery: the servers speak {dialect}, which has no transactions, so nothing"
            " can be written exactly once; set delivery=at-least-once: rows that a task wrote"
            " before it failed may then be there twice"
        )


def _named(options: SinkOptions, refs: Sequence[StreamRef], option: str) -> dict[str, FoundStream]:
    """Return the streams that an option names; they are created if need be."""
    try:
        infos = describe_refs(options.servers, refs, option)
    except NotFoundError:
        if options.maybe_creation is None:
            raise
        patient = client_for(options.servers, Patience.RUNNING)
        create_missing(patient, refs, options.maybe_creation)
        infos = describe_refs(options.servers, refs, option)
    return {ref.text: FoundStream.of(info) for info, ref in zip(infos, refs, strict=True)}


def _by_id(named: Mapping[str, FoundStream]) -> dict[int, str]:
    return {each.stream_id: name for name, each in named.items()}
