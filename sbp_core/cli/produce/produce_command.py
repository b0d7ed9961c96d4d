"""`sbp produce`: append lines, JSON, CSV, Parquet or Arrow to a stream."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from datetime import UTC, datetime, timedelta
from functools import partial
from typing import TYPE_CHECKING, Final

import click

from sbp_core.cli.commands import Command
from sbp_core.cli.connect import STREAM, checked_new_name, connect, find_stream
from sbp_core.cli.formats import CSV, FORMAT, JSON, LINES, maybe_format_of
from sbp_core.cli.options import PATH, TIMESTAMP, ClientOptions, Value, client_options, retry_option
from sbp_core.cli.output import write_error, write_result
from sbp_core.cli.signals import HeldInterrupts
from sbp_core.errors import AlreadyExistsError, ConfigurationError, NotFoundError, SbpError
from sbp_core.quantities import quoted
from sbp_core.wording import counted

if TYPE_CHECKING:
    from sbp_core.app.encoding import Target
    from sbp_core.cli.produce.inputs import Opened, Parsing, Piece
    from sbp_core.cli.produce.sender import Sender
    from sbp_core.client import Client, StreamInfo

_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)


def _parse_separator(text: str) -> bytes:
    if not text:
        raise ConfigurationError("the separator is empty")
    return os.fsencode(text)


def _parse_header(text: str) -> tuple[str, bytes]:
    name, separator, value = text.partition("=")
    if not separator or not name.isprintable():
        raise ConfigurationError(f"{quoted(text)} is not NAME=TEXT")
    return name, os.fsencode(value)


@click.command(cls=Command, example="sbp produce orders orders.jsonl --format json")
@click.argument("stream", type=STREAM, metavar="NAME_OR_ID")
@click.argument("file", metavar="[FILE]", type=PATH, required=False)
@click.option(
    "--format",
    "form",
    type=FORMAT,
    help="The format of the input. [default: by the suffix of FILE, else lines; JSON and CSV for a"
    " stream without a schema have to be named]",
)
@click.option(
    "--key-separator",
    type=Value("TEXT", _parse_separator),
    help="The text before it in a line becomes the key; a line without it has no key.",
)
@click.option(
    "--key", type=Value("TEXT", os.fsencode), help="The key of plain records that bring none."
)
@click.option(
    "--header",
    "headers",
    type=Value("NAME=TEXT", _parse_header),
    multiple=True,
    help="A header of plain records that bring none; may be repeated.",
)
@click.option(
    "--timestamp",
    type=TIMESTAMP,
    help="The time of plain records that bring none. [default: when they are read]",
)
@click.option(
    "--create", is_flag=True, help="Create the stream, without a schema, if it is missing."
)
@click.option(
    "--id",
    "producer_id",
    metavar="NAME",
    help="Count the records under this name: run again on the same input, the command appends those"
    " that are missing. Each batch takes a commit, of milliseconds.",
)
@retry_option
@client_options
def produce(  # noqa: PLR0917 - click passes names
    options: ClientOptions,
    stream: str,
    file: str | None,
    form: str | None,
    key_separator: bytes | None,
    key: bytes | None,
    headers: tuple[tuple[str, bytes], ...],
    timestamp: datetime | None,
    create: bool,  # noqa: FBT001 - click calls it by name
    producer_id: str | None,
    retry_for: float,
) -> int:
    """Append the records of FILE, or of standard input, to a stream.

    In the format `lines`, each line without its newline is a value. In `json`, a line is an object,
    of the columns of a stream with a schema, else of value, key, headers and timestamp, as
    `sbp consume --json` prints them.

    In `csv`, the first line names the columns: those of the schema, else value, key, timestamp and
    header.NAME. An empty field is null, and "" is empty text.

    In `parquet` and `arrow`, a stream or file of Arrow IPC, columns are found by their names: those
    of the schema, else value, key, headers and timestamp.

    Each record is appended once, also if connections break or the server restarts. Records are
    duplicated only if the server has no idempotent appends, of which the command warns, or if you
    run it again on the same input without --id.

    A record with a fault ends the command, with its number; those before it are appended. Ctrl-C
    does the same, and reports what is acknowledged; a second one does not wait for that.
    """
    from sbp_core.cli.produce.inputs import Defaults, Parsing, opened, reader_of

    timestamp_us = None if timestamp is None else (timestamp - _EPOCH) // timedelta(microseconds=1)
    defaults = Defaults(key, headers, timestamp_us)
    is_guess = form is None
    form = form or maybe_format_of(file or "") or LINES
    if key_separator is not None and form != LINES:
        raise ConfigurationError(f"--key-separator is for lines, and the format is {form}")
    with (
        opened(None if file == "-" else file) as source,
        connect(options, retry_for) as client,
    ):
        info = _found(client, stream, may_create=create)
        target = _target(client, info)
        parsing = Parsing(target, defaults, key_separator)
        _check_fit(parsing, form, guessed_from=file if is_guess else None)
        sender = _sender(client, target, producer_id)
        skipped = sender.left_to_skip
        with _reporting(sender, is_json=options.json):
            _send(source, reader_of(form)(source, parsing), sender)
    if sender.left_to_skip:
        raise ConfigurationError(
            f"{counted(skipped, 'record')} of {producer_id} are in {info.label}, and the input has"
            f" {skipped - sender.left_to_skip}: it is not the input of the runs before; use"
            " another --id for another one"
        )
    text = f"{counted(sender.record_count, 'record')} appended to {info.label}"
    if skipped:
        text += f", behind {skipped} that are there"
    write_result(_summary(info, sender, skipped), text, is_json=options.json)
    return 0


def _found(client: Client, stream: str, *, may_create: bool) -> StreamInfo:
    """Return the stream with this name or id; a new one if that is allowed. Raises SbpError."""
    from sbp_core.client import StreamSpec

    try:
        return find_stream(client, stream)
    except NotFoundError:
        if not may_create:
            raise
    with suppress(AlreadyExistsError):  # another one was faster
        client.create_streams([StreamSpec(checked_new_name(stream))])
    return find_stream(client, stream)


def _target(client: Client, info: StreamInfo) -> Target:
    from sbp_core.app.encoding import Target
    from sbp_core.client import newest_schemas

    stream_id = info.stream_id
    newest = newest_schemas(client, [stream_id]).get(stream_id)
    return Target(
        info.label,
        stream_id,
        None if newest is None else newest.schema,
        client.record_bytes_max([stream_id])[stream_id],
    )


def _check_fit(parsing: Parsing, form: str, *, guessed_from: str | None) -> None:
    """Raise ConfigurationError for options that a stream with a schema does not have.

    Without a schema, lines of JSON or CSV may be values as they are, or have value, key and so on:
    the suffix of a file, if the format was guessed from that, does not tell.
    """
    from sbp_core.cli.produce.inputs import Defaults

    if parsing.target.schema is None:
        if guessed_from is not None and form in {JSON, CSV}:
            raise ConfigurationError(
                f"{parsing.target.stream} has no schema: write --format lines to store each line of"
                f" {guessed_from} as a value, or --format {form} if it has value, key, headers and"
                " timestamp"
            )
        return
    if form == LINES:
        raise ConfigurationError(
            f"{parsing.target.stream} has a schema, and lines have no columns; use --format json,"
            " csv, parquet or arrow, or produce to another stream"
        )
    if parsing.defaults != Defaults():
        raise ConfigurationError(
            f"{parsing.target.stream} has a schema: its records have columns, and no --key,"
            " --header or --timestamp"
        )


def _sender(client: Client, target: Target, producer_id: str | None) -> Sender:
    from sbp_core.app.blocking import Committer
    from sbp_core.cli.produce.sender import Appending, Committing, Sender

    if producer_id is None:
        return Sender(target, partial(Appending, client, target.stream_id))
    committer = Committer(client, producer_id, target.stream_id)
    committer.begin()
    return Sender(target, partial(Committing, committer), committer.position)


def _send(source: Opened, pieces: Iterator[Piece], sender: Sender) -> None:
    """Send all rows; after a fault in the input or an interrupt, those that were read."""
    from sbp_core.cli.produce.sender import shown_progress

    with HeldInterrupts() as interrupts:
        try:
            with shown_progress(source, sender) as show:
                for rows in pieces:
                    with interrupts.held():
                        sender.flush() if rows is None else sender.add(rows)
                    show()
        finally:
            with interrupts.held():
                sender.flush()


@contextmanager
def _reporting(sender: Sender, *, is_json: bool) -> Iterator[None]:
    """Add to an error, or print at an interrupt, what is acknowledged."""
    try:
        yield
    except SbpError as error:
        error.add_note(f"acknowledged before: {sender.report()}")
        raise
    except KeyboardInterrupt:
        text = f"interrupted; acknowledged: {sender.report()}"
        if sender.is_cut_short:
            text += "; more may be there, as an append was cut short"
        write_error(KeyboardInterrupt(text), is_json=is_json)
        raise


def _summary(info: StreamInfo, sender: Sender, skipped_count: int) -> dict[str, str | int | None]:
    """Return what was acknowledged; offsets are None when nothing was, and with --id."""
    return {
        "stream": info.label,
        "stream_id": info.stream_id,
        "records": sender.record_count,
        "first_offset": sender.first_offset,
        "last_offset": sender.last_offset,
        "skipped": skipped_count,
    }
