"""Options of the source."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace

from sbp_core.client import StreamInfo
from sbp_spark.options.bounds import check_order, read_ending, read_starting
from sbp_spark.options.contents import Contents, read_contents
from sbp_spark.options.data_loss import OnDataLoss, read_on_data_loss
from sbp_spark.options.groups import CommitOptions, read_commit_options
from sbp_spark.options.partitions import PartitionLimits, read_partition_limits
from sbp_spark.options.positions import Earliest, Latest, Positions
from sbp_spark.options.reading import OptionReader
from sbp_spark.options.servers import (
    Servers,
    read_compression,
    read_endpoint,
    read_isolation_class,
)
from sbp_spark.options.streams import FoundStream, Selection, read_selection
from sbp_spark.options.table import SOURCE_OPTIONS
from sbp_spark.options.triggers import TriggerLimits, read_limits


@dataclass(frozen=True, slots=True)
class SourceOptions:
    """Options of a source.

    `ending` is None where nothing is said: to the tail in a batch, for ever in a stream.
    """

    servers: Servers
    selection: Selection
    starting: Positions
    ending: Positions | None
    limits: TriggerLimits
    partitions: PartitionLimits
    contents: Contents = field(default_factory=Contents)
    on_data_loss: OnDataLoss = OnDataLoss.FAIL
    commits: CommitOptions = field(default_factory=CommitOptions)

    def knowing(self, infos: Iterable[StreamInfo]) -> SourceOptions:
        """Return the options, in which the names of these streams go on to mean them."""
        found = {info.name: FoundStream.of(info) for info in infos if info.name is not None}
        starting = replace(self.starting, found=found)
        ending = None if self.ending is None else replace(self.ending, found=found)
        return replace(self, starting=starting, ending=ending)


def parse_source_options(options: Mapping[str, str], *, streaming: bool | None) -> SourceOptions:
    """Return the source's options; `streaming` tells readStream from read.

    None: it is not known yet, so only what is wrong in both is told. Raises ConfigurationError
    with one line per fault.
    """
    reader = OptionReader(options, SOURCE_OPTIONS, frozenset())
    if reader.is_given("table"):
        expected = "records to be read"
        reader.add_fault("table", "is for batches only", expected, "use spark.read, or remove it")
    is_batch = streaming is False
    endpoint = read_endpoint(reader)
    selection = read_selection(reader)
    given = read_starting(reader, is_batch=is_batch)
    starting = given or Positions(Earliest() if is_batch else Latest())
    ending = read_ending(reader)
    if ending is not None and (given is not None or streaming is not None):
        check_order(reader, starting, ending)
    limits = read_limits(reader, is_batch=is_batch)
    partitions = read_partition_limits(reader)
    contents = read_contents(reader)
    on_data_loss = read_on_data_loss(reader)
    commits = read_commit_options(reader, is_batch=is_batch)
    is_compressed = read_compression(reader)
    isolation_class = read_isolation_class(reader)
    reads_locally = reader.flag("localReads", default=True)
    reader.check_faults("source")
    assert endpoint is not None
    servers = Servers(endpoint, is_compressed, isolation_class, reads_locally)
    return SourceOptions(
        servers,
        selection,
        starting,
        ending,
        limits,
        partitions,
        contents,
        on_data_loss,
        commits,
    )
