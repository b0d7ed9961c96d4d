"""Options of the sink."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

from sbp_spark.options.batching import Batching, read_batching
from sbp_spark.options.catalog import is_table_given
from sbp_spark.options.columns import ColumnOptions, read_columns
from sbp_spark.options.delivery import DeliveryOptions, read_delivery
from sbp_spark.options.reading import OptionReader
from sbp_spark.options.servers import Servers, read_compression, read_endpoint
from sbp_spark.options.streams import FoundStream
from sbp_spark.options.table import SINK_OPTIONS
from sbp_spark.options.targets import (
    BadRecordPolicy,
    Creation,
    Targets,
    read_bad_record_policy,
    read_creation,
    read_targets,
)

_KEYS_OF_SPARK: Final = frozenset({"checkpointlocation", "queryname"})


@dataclass(frozen=True, slots=True)
class SinkOptions:
    """Options of a sink; with a `maybe_creation` missing streams are created.

    With `maybe_columns` columns are written, without them plain records. `found` are streams that
    options name, as they were when the write was planned: as long as one exists it is the one that
    is meant, whatever it is called by now.
    """

    servers: Servers
    targets: Targets = field(default_factory=Targets)
    delivery: DeliveryOptions = field(default_factory=DeliveryOptions)
    batching: Batching = field(default_factory=Batching)
    bad_records: BadRecordPolicy = field(default_factory=BadRecordPolicy)
    maybe_creation: Creation | None = None
    maybe_columns: ColumnOptions | None = None
    found: Mapping[str, FoundStream] = field(default_factory=dict)

    @property
    def key_column(self) -> str | None:
        """The column that may tell which of several streams a row goes to."""
        return "key" if self.maybe_columns is None else self.maybe_columns.routing_column


def parse_sink_options(options: Mapping[str, str], *, streaming: bool | None = None) -> SinkOptions:
    """Return the sink's options; what Spark itself adds to them is passed over.

    `streaming` is None where it is not known yet whether a batch or a stream is written. Raises
    ConfigurationError with one line per fault.
    """
    reader = OptionReader(options, SINK_OPTIONS, _KEYS_OF_SPARK | {"table"})
    if is_table_given(options):
        remedy = "remove it; streams are changed by the command `sbp streams`"
        reader.add_fault("table", "is for reading only", "records to be written", remedy)
    endpoint = read_endpoint(reader)
    targets = read_targets(reader)
    columns = read_columns(reader)
    delivery = read_delivery(reader, is_streaming=streaming)
    batching = read_batching(reader)
    bad_records = read_bad_record_policy(reader)
    creation = read_creation(reader)
    is_compressed = read_compression(reader)
    reader.check_faults("sink")
    assert endpoint is not None
    servers = Servers(endpoint, is_compressed)
    return SinkOptions(servers, targets, delivery, batching, bad_records, creation, columns)
