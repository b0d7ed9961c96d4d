"""The list of streams, searched and sorted by the server; creating a stream."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Final

from starlette.responses import Response

from sbp_core import limits
from sbp_core.access.rights import is_stream_name
from sbp_core.client import RangeServerInfo, StreamInfo, StreamSpec, StreamUpdate
from sbp_core.errors import ConfigurationError
from sbp_core.operating.samples import Samples
from sbp_core.quantities import (
    is_offset,
    parse_duration_ms,
    parse_size,
    quoted,
    show_duration,
    show_retention,
    show_size,
)
from sbp_core.web.console.charts import SPARK_SPAN_MS, draw_spark
from sbp_core.web.console.health import maybe_cluster
from sbp_core.web.console.site import Done, Field, Question, Visit, get, post
from sbp_core.web.console.sorting import Column, make_table
from sbp_core.web.console.words import counted

_SAMPLED_MIN: Final = 1_000
"""From this many streams on, a page lists the streams of the last sample, which is seconds old."""


@dataclass(frozen=True, slots=True)
class StreamRow:
    """A stream in the list. None: not known, as its server is down or nothing was sampled yet."""

    info: StreamInfo
    record_count: int | None
    end_offset: int | None
    size_bytes: int | None
    rate: float | None
    byte_rate: float | None
    lag: int | None


COLUMNS: Final[tuple[Column[StreamRow], ...]] = (
    Column("name", "Stream", lambda row: row.info.label.lower()),
    Column("id", "Id", lambda row: -row.info.stream_id, is_number=True),
    Column("records", "Records", lambda row: row.record_count, is_number=True),
    Column("end", "End", lambda row: row.end_offset, is_number=True),
    Column("size", "Size", lambda row: row.size_bytes, is_number=True),
    Column("rate", "Records/s", lambda row: row.rate, is_number=True),
    Column("bytes", "Bytes/s", lambda row: row.byte_rate, is_number=True),
    Column("lag", "Largest lag", lambda row: row.lag, is_number=True),
    Column("replicas", "Replicas", lambda row: row.info.replica_count, is_number=True),
    Column(
        *("retention", "Retention"),
        lambda row: (
            row.info.retention_period_ms or float("inf"),
            row.info.retention_bytes or float("inf"),
        ),
    ),
)


async def show(visit: Visit) -> Response:
    """Show the streams that the caller sees."""
    samples, query = visit.samples(), visit.query
    streams = samples.streams
    if len(streams) < _SAMPLED_MIN:
        streams = await visit.client.list_streams()
    rows = make_rows(streams, samples, query.get("search", ""))
    table, now_ms = make_table(rows, COLUMNS, query, visit.path), time.time_ns() / 1_000_000
    shown = [each.info.stream_id for each in table.rows]
    past = samples.rates_over_time(shown, now_ms - SPARK_SPAN_MS)
    return visit.page(
        *("streams.html", "Streams"),
        table=table,
        is_searched=bool(query.get("search", "").strip()),
        sparks={each: draw_spark(points, now_ms) for each, points in past.items()},
    )


def make_rows(streams: Sequence[StreamInfo], samples: Samples, search: str) -> list[StreamRow]:
    """Return the streams whose name or id has the text that is searched for, in any case."""
    wanted = search.strip().lower()
    ends, rates, byte_rates = samples.newest, samples.rates(), samples.byte_rates()
    lags = samples.lags[-1].by_stream() if samples.lags else {}
    rows = []
    for info in streams:
        stream_id = info.stream_id
        if wanted not in info.label.lower() and wanted != str(stream_id):
            continue
        end = None if ends is None else ends.maybe_end(stream_id)
        start = samples.starts.get(stream_id)
        held = None if end is None or start is None else end - start
        size, lag = samples.sizes.get(stream_id), lags.get(stream_id)
        speed = (rates.get(stream_id), byte_rates.get(stream_id))
        rows.append(StreamRow(info, held, end, size, *speed, lag))
    return rows


def parse_count(text: str) -> int:
    """Return a whole number, 0 or more. Raises ConfigurationError."""
    if not is_offset(text):
        raise ConfigurationError(f"{quoted(text)} is not a whole number, 0 or more")
    return int(text)


def _parse_replicas(text: str) -> int:
    if not is_offset(text) or not 1 <= int(text) <= limits.REPLICAS_MAX:
        raise ConfigurationError(f"{quoted(text)} is not a number from 1 to {limits.REPLICAS_MAX}")
    return int(text)


def _parse_acks(text: str) -> int:
    return parse_count(text) if text else 0


_NUMBERS: Final[tuple[tuple[str, str, str, Callable[[str], int]], ...]] = (
    ("replicas", "replica_count", "replicas", _parse_replicas),
    ("ack_count", "ack_count", "acknowledged by", _parse_acks),
    ("retention", "retention_period_ms", "retention", parse_duration_ms),
    ("retention_size", "retention_bytes", "retention size", parse_size),
)
"""Fields with a number: name, attribute of StreamSpec, title for errors, parser."""


@dataclass(frozen=True, slots=True)
class StreamForm:
    """The texts of a form about a stream, as they are shown in its fields."""

    name: str = ""
    replicas: str = "1"
    ack_count: str = ""
    retention: str = "0"
    retention_size: str = "0"

    @classmethod
    def of(cls, info: StreamInfo) -> StreamForm:
        """Return the form with what a stream has now."""
        return cls(
            info.name or "",
            str(info.replica_count),
            str(info.ack_count) if info.ack_count else "",
            show_duration(info.retention_period_ms) if info.retention_period_ms else "0",
            show_size(info.retention_bytes) if info.retention_bytes else "0",
        )

    @classmethod
    def read(
        cls, fields: Mapping[str, str], default: StreamForm, *, prefix: str = ""
    ) -> StreamForm:
        """Return the form as it was sent, in fields whose names begin so.

        A field that is missing is as in `default`.
        """
        return cls(
            *(fields.get(prefix + name, text).strip() for name, text in default.fields().items())
        )

    def fields(self, *, prefix: str = "") -> dict[str, str]:
        """Return the texts by the names of the fields, as `read` gets them."""
        return {prefix + name: text for name, text in asdict(self).items()}

    def shown(self) -> list[Field]:
        """Return the fields of the page."""
        return [
            Field("name", "Name", self.name, is_required=not self.name),
            Field("replicas", "Replicas of each record, each on a range server", self.replicas),
            Field(
                *("ack_count", "Replicas that acknowledge a record; the majority if this is empty"),
                *(self.ack_count, False),
            ),
            Field(
                *("retention", "How long records are kept, such as 90s, 12h or 7d; 0 is for ever"),
                self.retention,
            ),
            Field(
                "retention_size",
                "How much of the stream a range server keeps, such as 10GiB; 0 is no limit",
                self.retention_size,
            ),
        ]

    def spec(self) -> StreamSpec:
        """Return the stream to create. Raises ConfigurationError with all faults."""
        spec = StreamSpec(**self.numbers(), name=self._checked_name())
        if spec.ack_count > spec.replica_count:
            replicas = counted(spec.replica_count, "replica")
            raise ConfigurationError(f"acknowledged by: {spec.ack_count} is more than {replicas}")
        return spec

    def update(self, info: StreamInfo) -> StreamUpdate:
        """Return the change of a stream. Raises ConfigurationError, also if nothing changes."""
        now = StreamForm.of(info)
        if self == now:
            raise ConfigurationError("nothing to change: the form has what the stream has")
        values = self.numbers(unlike=now)
        if values.get("ack_count") == 0:
            values["ack_count"] = values.get("replica_count", info.replica_count) // 2 + 1
        name = self._checked_name() if self.name != now.name else None
        return StreamUpdate(info.stream_id, name=name, **values)

    def numbers(self, *, unlike: StreamForm | None = None) -> dict[str, Any]:
        """Return what the fields but the name mean, by the names of StreamSpec.

        Those that are as in `unlike` are left out. Raises ConfigurationError with all faults.
        """
        values: dict[str, Any] = {}
        faults = []
        for name, attribute, title, parse in _NUMBERS:
            text = getattr(self, name)
            if unlike is not None and text == getattr(unlike, name):
                continue
            try:
                values[attribute] = parse(text)
            except ConfigurationError as error:
                faults.append(f"{title}: {error}")
        if faults:
            raise ConfigurationError("; ".join(faults))
        return values

    def _checked_name(self) -> str:
        if not self.name:
            raise ConfigurationError("the stream needs a name")
        if not is_stream_name(self.name):
            raise ConfigurationError(
                f"{quoted(self.name)} cannot name a stream: use 1 to"
                f" {limits.STREAM_NAME_LENGTH_MAX} of A-Z a-z 0-9 . _ -, and not digits only"
            )
        return self.name


async def ask_creation(visit: Visit) -> Response:
    """Show the form of a new stream; with a name, what it will be."""
    form, client = StreamForm.read(visit.query, StreamForm()), visit.client
    if "name" not in visit.query:
        return visit.form("Create a stream", form.shown(), "/streams")
    spec = form.spec()
    check_is_new(form.name, await client.find_streams([form.name]))
    missing = await client.explain_missing(spec.replica_count)
    cluster = await maybe_cluster(client)
    refusal = None if cluster is None else maybe_refusal(spec, cluster.range_servers)
    question = Question(
        title=f"Create stream {spec.name}?",
        facts=[refusal] if refusal else [*creation_facts(spec), *([missing] if missing else [])],
        button=None if refusal else "Create it",
        back="/streams",
        carried=form.fields(),
    )
    return visit.ask(question)


async def create(visit: Visit, fields: Mapping[str, str]) -> Done:
    """Create a stream."""
    spec = StreamForm.read(fields, StreamForm()).spec()
    (info,) = await visit.client.create_streams([spec])
    return Done(f"/streams/{info.stream_id}", (f"created {titled(info)}",))


def titled(info: StreamInfo) -> str:
    """Return a stream with its id, for sentences."""
    return f"{info.label} (id {info.stream_id})"


def creation_facts(spec: StreamSpec) -> list[str]:
    """Return what a stream will be, a sentence each."""
    acks = f", acknowledged by {spec.ack_count}" if spec.ack_count else ""
    return [
        f"Stream {spec.name} is created.",
        f"Each record has {counted(spec.replica_count, 'replica')}{acks}.",
        f"Records are kept: {show_retention(spec.retention_period_ms, spec.retention_bytes)}.",
    ]


def maybe_refusal(spec: StreamSpec, servers: Sequence[RangeServerInfo]) -> str | None:
    """Return why too few range servers can have ranges now for a stream to be created."""
    needed = spec.ack_count or spec.replica_count // 2 + 1
    usable = sum(each.is_usable for each in servers)
    if usable >= needed:
        return None
    return (
        f"It cannot be created now: {counted(needed, 'range server')} would have to store each"
        f" record, and {counted(usable, 'range server')} can have new ranges. Start more, or ask"
        " for fewer replicas."
    )


def check_is_new(name: str, found: Sequence[StreamInfo]) -> None:
    """Raise ConfigurationError if `found`, the streams of this name, has one."""
    if found:
        raise ConfigurationError(f"there is a stream {name} (id {found[0].stream_id}) already")


ROUTES: Final = (
    get("/streams", show),
    get("/streams/new", ask_creation),
    post("/streams/new", create),
)
