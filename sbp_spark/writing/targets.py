"""The streams that a sink's options name: looked at, or created, before the first row comes."""

from __future__ import annotations

from collections.abc import Sequence

from sbp_core.client import Dialect
from sbp_core.errors import ConfigurationError, NotFoundError
from sbp_core.records import StreamSchema
from sbp_spark.client_pool import Patience, client_for
from sbp_spark.options import Delivery, SinkOptions, StreamRef
from sbp_spark.reading.source_streams import describe_refs, first_contact
from sbp_spark.wording import listed
from sbp_spark.writing.directory import create_missing
from sbp_spark.writing.typed_streams import ON_BAD_RECORD, check_plain, evolve_streams


def check_targets(options: SinkOptions, maybe_schema: StreamSchema | None = None) -> None:
    """Raise SbpError unless the endpoint answers and knows the streams that options name.

    Those that do not exist are created, if that is wanted. Columns of a schema have to fit into
    those of the streams, which may get theirs now, and plain records need streams without one.
    """
    with first_contact(options.servers) as client:
        _check_dialect(client.dialect(), options)
    option = "streams" if len(options.targets.refs) > 1 else "stream"
    targets = _named(options, options.targets.refs, option)
    letters = _named(options, list(filter(None, [options.bad_records.dead_letters])), "onBadRecord")
    with first_contact(options.servers) as client:
        check_plain(client, letters, ON_BAD_RECORD)
        if maybe_schema is None or options.maybe_columns is None:
            check_plain(client, targets, f"option {option}")
            return
        both = [repr(targets[stream_id]) for stream_id in letters if stream_id in targets]
        if both:
            raise ConfigurationError(
                f"option onBadRecord: stream {listed(both)} is for columns, but dead letters are"
                " plain records; name another stream"
            )
        may_change = options.maybe_columns.is_merging
        evolve_streams(client, targets, maybe_schema, may_change=may_change)


def purpose_of(options: SinkOptions, maybe_schema: StreamSchema | None = None) -> str:
    """Return a text that tells sinks apart for which `check_targets` does not do the same."""
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


def _named(options: SinkOptions, refs: Sequence[StreamRef], option: str) -> dict[int, str]:
    """Return streams that an option names, by id; they are created if need be."""
    try:
        infos = describe_refs(options.servers, refs, option)
    except NotFoundError:
        if options.maybe_creation is None:
            raise
        patient = client_for(options.servers, Patience.RUNNING)
        create_missing(patient, refs, options.maybe_creation)
        infos = describe_refs(options.servers, refs, option)
    return {info.stream_id: ref.text for info, ref in zip(infos, refs, strict=True)}
