"""The streams that a sink's options name: looked at, or created, before the first row comes."""

from __future__ import annotations

from sbp_core.errors import NotFoundError
from sbp_spark.options import SinkOptions
from sbp_spark.reading.source_streams import describe_refs, first_contact
from sbp_spark.writing.directory import create_missing


def check_targets(options: SinkOptions) -> None:
    """Raise SbpError unless the endpoint answers and knows the streams that options name.

    Those that do not exist are created, if that is wanted.
    """
    named = {
        "streams" if len(options.targets.refs) > 1 else "stream": options.targets.refs,
        "onBadRecord": tuple(filter(None, [options.bad_records.dead_letters])),
    }
    for option, refs in named.items():
        try:
            describe_refs(options.servers, refs, option)
        except NotFoundError:
            if options.maybe_creation is None:
                raise
            with first_contact(options.servers) as client:
                create_missing(client, refs, options.maybe_creation)
            describe_refs(options.servers, refs, option)


def purpose_of(options: SinkOptions) -> str:
    """Return a text that tells sinks apart for which `check_targets` does not do the same."""
    named = (options.targets.refs, options.bad_records.dead_letters, options.maybe_creation)
    return repr(named)
