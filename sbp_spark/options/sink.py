"""Options of the sink."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from sbp_core.errors import ConfigurationError
from sbp_spark.options.catalog import is_table_given
from sbp_spark.options.reading import OptionReader
from sbp_spark.options.servers import Servers, read_compression, read_endpoint
from sbp_spark.options.streams import StreamRef, parse_stream_ref
from sbp_spark.options.table import SINK_OPTIONS

_KEYS_OF_SPARK: Final = frozenset({"checkpointlocation", "queryname"})


@dataclass(frozen=True, slots=True)
class SinkOptions:
    """Options of a sink; `stream` is None where each row names its stream itself."""

    servers: Servers
    stream: StreamRef | None


def parse_sink_options(options: Mapping[str, str]) -> SinkOptions:
    """Return the sink's options; what Spark itself adds to them is passed over.

    Raises ConfigurationError with one line per fault.
    """
    reader = OptionReader(options, SINK_OPTIONS, _KEYS_OF_SPARK | {"table"})
    if is_table_given(options):
        remedy = "remove it; streams are changed by the command `sbp streams`"
        reader.add_fault("table", "is for reading only", "records to be written", remedy)
    endpoint = read_endpoint(reader)
    stream = None
    text = reader.maybe_text("stream")
    if text is not None:
        try:
            stream = parse_stream_ref(text)
        except ConfigurationError as error:
            reader.add_fault("stream", f"names no stream: {error}", "one name or id", "correct it")
    is_compressed = read_compression(reader)
    reader.check_faults("sink")
    assert endpoint is not None
    return SinkOptions(Servers(endpoint, is_compressed), stream)
