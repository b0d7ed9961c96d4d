"""Options of the source and of the sink: strings in, frozen values out, all faults at once."""

from __future__ import annotations

from sbp_spark.options.batching import Batching
from sbp_spark.options.catalog import (
    CatalogOptions,
    Table,
    is_table_given,
    parse_catalog_options,
)
from sbp_spark.options.columns import ColumnOptions
from sbp_spark.options.contents import Contents, SourceEncoding
from sbp_spark.options.data_loss import OnDataLoss
from sbp_spark.options.delivery import BatchKey, Delivery, DeliveryOptions, OnReplayMismatch
from sbp_spark.options.groups import CommitOptions
from sbp_spark.options.partitions import PartitionLimits
from sbp_spark.options.positions import (
    Ago,
    AtCursor,
    AtOffset,
    AtTime,
    BeforeTail,
    Earliest,
    InsidePosition,
    Latest,
    Position,
    Positions,
)
from sbp_spark.options.servers import TABLE_REMEDY, Endpoint, Servers
from sbp_spark.options.sink import SinkOptions, parse_sink_options
from sbp_spark.options.source import SourceOptions, parse_source_options
from sbp_spark.options.streams import (
    FoundStream,
    Selection,
    StreamList,
    StreamPattern,
    StreamRef,
    find_ids,
    parse_stream_ref,
)
from sbp_spark.options.table import SINK_OPTIONS, SOURCE_OPTIONS, OptionSpec
from sbp_spark.options.targets import BadRecordPolicy, Creation, OnBadRecord, Routing, Targets
from sbp_spark.options.triggers import AvailableNowEnd, TriggerLimits

__all__ = [
    "SINK_OPTIONS",
    "SOURCE_OPTIONS",
    "TABLE_REMEDY",
    "Ago",
    "AtCursor",
    "AtOffset",
    "AtTime",
    "AvailableNowEnd",
    "BadRecordPolicy",
    "BatchKey",
    "Batching",
    "BeforeTail",
    "CatalogOptions",
    "ColumnOptions",
    "CommitOptions",
    "Contents",
    "Creation",
    "Delivery",
    "DeliveryOptions",
    "Earliest",
    "Endpoint",
    "FoundStream",
    "InsidePosition",
    "Latest",
    "OnBadRecord",
    "OnDataLoss",
    "OnReplayMismatch",
    "OptionSpec",
    "PartitionLimits",
    "Position",
    "Positions",
    "Routing",
    "Selection",
    "Servers",
    "SinkOptions",
    "SourceEncoding",
    "SourceOptions",
    "StreamList",
    "StreamPattern",
    "StreamRef",
    "Table",
    "Targets",
    "TriggerLimits",
    "find_ids",
    "is_table_given",
    "parse_catalog_options",
    "parse_sink_options",
    "parse_source_options",
    "parse_stream_ref",
]
