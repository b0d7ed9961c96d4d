"""Options of a source, and what is said of wrong ones."""

from __future__ import annotations

import pytest

from sbp_core.errors import ConfigurationError
from sbp_spark.options.source import parse_source_options

GOOD = {"endpoint": "pd:12378", "streams": "orders,17"}


def source(streaming=True, **options):
    """Good options with these."""
    return parse_source_options({**GOOD, **options}, streaming=streaming)


def faults(options, streaming=True):
    """The lines of the error about these options."""
    with pytest.raises(ConfigurationError) as caught:
        parse_source_options(options, streaming=streaming)
    return str(caught.value).splitlines()[1:]


def only_fault(streaming=True, **options):
    """The one line of the error about good options with these."""
    (line,) = faults({**GOOD, **options}, streaming)
    return line
