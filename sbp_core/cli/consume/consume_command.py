"""`sbp consume`: the command, its options, and the loop over batches."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, closing, nullcontext
from dataclasses import dataclass
from datetime import datetime
from typing import TYPE_CHECKING, Final

import click

from sbp_core.cli import formats
from sbp_core.cli.commands import Command
from sbp_core.cli.connect import STREAM, connect
from sbp_core.cli.options import (
    PATH,
    POSITION,
    POSITIVE,
    TIMESTAMP,
    ClientOptions,
    Value,
    client_options,
    retry_option,
)
from sbp_core.cli.output import noticing_reader, write_notice
from sbp_core.cli.signals import NotedInterrupts
from sbp_core.errors import ConfigurationError
from sbp_core.operating.stream_position import Position, PositionKind, position_at
from sbp_core.wording import counted

if TYPE_CHECKING:
    from sbp_core.app.record import Batch
    from sbp_core.cli.consume.record_reading import Plan, Reading
    from sbp_core.cli.consume.rendering import Render
    from sbp_core.cli.consume.selected_rows import Choice
    from sbp_core.cli.consume.writers import Target, Writer
    from sbp_core.client import Client

_EXIT_INTERRUPTED: Final = 130
_EARLIEST: Final = Position(PositionKind.EARLIEST)
_TABLES: Final = frozenset({formats.PARQUET, formats.ARROW})


def _names(text: str) -> tuple[str, ...]:
    names = tuple(dict.fromkeys(each.strip() for each in text.split(",")))
    if not all(names):
        raise ConfigurationError(f"{text!a} is not a list of columns such as key,value")
    return names


@dataclass(frozen=True, slots=True)
class Output:
    """How records are written: the format, the columns, the file."""

    form: str
    columns: tuple[str, ...] | None
    path: str | None


@click.command(cls=Command, example="sbp consume orders --last 10 --json")
@click.argument("streams", type=STREAM, metavar="STREAM...", nargs=-1, required=True)
@click.option("--from", "start", type=POSITION, help="Where to start. [default: earliest]")
@click.option("--from-timestamp", type=TIMESTAMP, help="Start at this time, as --from TIME does.")
@click.option("--to", "end", type=POSITION, help="Where to end, exclusive. [default: latest]")
@click.option("--last", type=POSITIVE, help="The last N records of each stream.")
@click.option("--max", "count_max", type=POSITIVE, help="End after N records.")
@click.option("-f", "--follow", is_flag=True, help="Wait for more records at the end.")
@click.option(
    "--group",
    metavar="NAME",
    help="Start where this group is, and commit for it what was read, also what --key"
    " leaves out. --from is for streams in which it has no cursor.",
)
@click.option("--key", metavar="TEXT", help="Only records with this key.")
@click.option("--columns", type=Value("NAME[,...]", _names), help="Only these columns.")
@click.option(
    "--format",
    "form",
    type=formats.FORMAT,
    help="The format of the output. [default: by the suffix of a file, else lines]",
)
@click.option("-o", "--to-file", type=PATH, help="Write a file.")
@retry_option
@client_options
def consume(
    options: ClientOptions,
    streams: tuple[str, ...],
    *,
    start: Position | None,
    from_timestamp: datetime | None,
    end: Position | None,
    last: int | None,
    count_max: int | None,
    follow: bool,
    group: str | None,
    key: str | None,
    columns: tuple[str, ...] | None,
    form: str | None,
    to_file: str | None,
    retry_for: float,
) -> int:
    r"""Print the records of streams, up to their current ends.

    STREAM is a name, an id, or the begin of names and a star, in quotes: 'orders-*'. Records of
    one stream come in order; those of several streams are mixed.

    A POSITION is earliest, latest, an offset, -N (N records before the tail), a time of append
    such as 2025-01-31T09:30 (UTC), or one before now: -90s, -10m, -12h, -7d.

    The format `lines` has the value of each record and a newline; of a stream with a schema, the
    columns as an object of JSON. A terminal shows control characters as escapes such as \x1b; a
    pipe or a file gets values as they were written. `json`, or --json, has an object for each
    record, with its offset; bytes that are not UTF-8 are {"base64": ...} there. `parquet` and
    `arrow` are for a file or a pipe.

    A file gets its name when it is complete, also after Ctrl-C, SIGTERM and SIGHUP; if something
    fails, there is none.
    """
    from sbp_core.cli.consume.record_reading import Reading, Wanted, check_wanted, shown_progress

    _check_together(
        {"--from": start, "--from-timestamp": from_timestamp, "--last": last},
        {"--format": form, "--json": options.json or None},
        {"--follow": follow or None, "--to": end},
    )
    if from_timestamp is not None:
        start = position_at(from_timestamp)
    wanted = Wanted(streams, start or _EARLIEST, end, last, group, is_following=follow)
    check_wanted(wanted)
    form = formats.JSON if options.json else form or _format_of(to_file)
    only_key = None if key is None else key.encode(errors="surrogateescape")
    written, is_file = Output(form, columns, to_file), to_file is not None
    with connect(options, retry_for) as client:
        is_held = is_file or form in _TABLES  # nothing is written before the end
        reading = Reading(client, wanted, commits_at_end=is_held)
        with (
            noticing_reader() if follow else nullcontext(),
            NotedInterrupts(is_file=is_file, has_group=group is not None) as interrupts,
            _opened(to_file) as target,
            _writer(client, written, target) as writer,
            shown_progress(client, is_wanted=is_file, has_end=not (follow or count_max)) as show,
        ):
            count = _copy(
                reading, only_key, count_max or sys.maxsize, writer, interrupts, show=show
            )
        if is_held:
            reading.commit()
    if interrupts.has_come:
        if is_file:
            write_notice(f"interrupted: {to_file} has {counted(count, 'record')}")
        return _EXIT_INTERRUPTED
    return 0


def _check_together(*groups: Mapping[str, object]) -> None:
    """Refuse options of which one is allowed, given by name, if two are not None."""
    for each in groups:
        given = [name for name, value in each.items() if value is not None]
        if len(given) > 1:
            raise click.UsageError(f"{given[0]} is not allowed with {given[1]}")


def _format_of(path: str | None) -> str:
    if path is None:
        return formats.LINES
    form = formats.maybe_format_of(path)
    if form is None:
        raise ConfigurationError(
            f"the format of {path!a} does not follow from its name: it ends with none of"
            f" {', '.join(formats.SUFFIXES)}; add --format"
        )
    return form


def _opened(path: str | None) -> AbstractContextManager[Target]:
    from sbp_core.cli.consume.writers import file_target, standard_output

    return nullcontext(standard_output()) if path is None else file_target(path)


def _writer(client: Client, output: Output, target: Target) -> Writer:
    """Return what writes records in a form. Raises ConfigurationError for bytes on a terminal."""
    from sbp_core.cli.consume.selected_rows import Choice
    from sbp_core.cli.consume.writers import TableWriter, TextWriter

    choice = Choice(client, output.columns)
    if output.form in _TABLES:
        if target.is_terminal:
            raise ConfigurationError(
                f"--format {output.form} is nothing for a terminal: write it to a pipe, or to a"
                " file with --to-file"
            )
        is_parquet = output.form == formats.PARQUET
        is_file = output.path is not None and not output.path.lower().endswith(".arrows")
        return TableWriter(target, choice, is_parquet=is_parquet, is_file=is_file)
    return TextWriter(target, _render(output, choice, is_terminal=target.is_terminal))


def _render(output: Output, choice: Choice, *, is_terminal: bool) -> Render:
    from sbp_core.cli.consume.rendering import column_lines, csv_lines, json_lines, value_lines

    match output.form:
        case formats.CSV:
            return csv_lines(choice, is_terminal=is_terminal)
        case formats.JSON:
            return json_lines(choice if output.columns else None)
    return column_lines(choice) if output.columns else value_lines(is_terminal=is_terminal)


def _copy(
    reading: Reading,
    key: bytes | None,
    count_max: int,
    writer: Writer,
    interrupts: NotedInterrupts,
    *,
    show: Callable[[Plan, Batch], None],
) -> int:
    """Write the records that are wanted, at most `count_max`; return how many. Raises SbpError."""
    from sbp_core.cli.consume.selected_rows import Rows, with_key

    left = count_max
    with closing(reading.batches()) as batches:
        while left and (batch := interrupts.maybe_next(batches)) is not None:
            rows = Rows.of(batch)
            rows = (rows if key is None else with_key(rows, key)).first(left)
            if len(rows):
                writer.write(rows)
                left -= len(rows)
            if left:
                reading.on_written(batch.stream, batch.end_offset)
            else:
                reading.on_written(batch.stream, rows.end_offset)
                reading.stop_at(batch.stream, rows.end_offset)
            show(reading.plan, batch)
        if interrupts.has_come:
            reading.finish()
    return count_max - left
