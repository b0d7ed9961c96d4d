"""Connecting to a cluster, for all subcommands of a client.

The functions import the client, so that `--help` of a command does without it.
"""

from __future__ import annotations

import math
import os
import re
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import fields
from difflib import get_close_matches
from typing import TYPE_CHECKING, Any, Final

import click
from click.shell_completion import CompletionItem

from sbp_core import limits
from sbp_core.cli.options import DEFAULT_ENDPOINT, ClientOptions, TlsOptions
from sbp_core.errors import ConfigurationError, NotFoundError, SbpError

if TYPE_CHECKING:
    from sbp_core.client import AsyncClient, Client, Connecting, Credentials, Reach, StreamInfo

PROMPT_MS: Final = limits.CONNECT_TIMEOUT_MS
"""The patience for a question of an interactive user: it fails after seconds."""
PATIENT_MS: Final = limits.OUTAGE_MS
"""The patience for a transfer, which survives an outage of the servers."""
_AT_ONCE_MS: Final = 500
"""The patience for hints beside an error: the user waits for the error itself."""
_NUMBERED: Final = re.compile(r"\bstream (\d{1,18})\b", re.ASCII)
_ABSENT: Final = re.compile(r"\bstream '([^']+)'")
_ANSWER_MS: Final = 3_000
"""How long range servers are waited for that do not answer, to say what is known without them."""
_AGAIN_SECONDS: Final = 0.1
_TOKEN_VARIABLE: Final = "SBP_TOKEN"  # noqa: S105 - the name of the variable


@contextmanager
def connect(
    options: ClientOptions, patience_ms: float = PROMPT_MS, *, first_ms: float = math.inf
) -> Iterator[Client]:
    """Yield a client of the cluster at --endpoint. Raises SbpError without an answer.

    `patience_ms` and `first_ms` are the budgets of a RetryPolicy. An error in the body gets notes:
    the names of streams that it has the ids of, and names that are close to an unknown one.
    """
    with _client(options, patience_ms, first_ms) as client:
        client.ping()
        try:
            yield client
        except SbpError as error:
            for note in _notes(error, options):
                error.add_note(note)
            raise


def _client(options: ClientOptions, patience_ms: float, first_ms: float = math.inf) -> Client:
    from sbp_core.client import Client, RetryPolicy

    retry = RetryPolicy(patience_ms, first_ms)
    return Client(options.endpoint, connecting=connecting(options), retry=retry)


def async_client(
    options: ClientOptions, patience_ms: float, *, restoring: str = "", **settings: Any
) -> AsyncClient:
    """Return a client for asyncio, which has not connected yet."""
    from sbp_core.client import AsyncClient, RetryPolicy

    retry = RetryPolicy(patience_ms)
    how = connecting(options, restoring)
    return AsyncClient(options.endpoint, connecting=how, retry=retry, **settings)


def suggestion(names: Iterable[str], known: Sequence[str]) -> str:
    """Return a question with the known names that are close to some names; "" without any."""
    close = dict.fromkeys(near for each in names for near in get_close_matches(each, known))
    return f"did you mean {' or '.join(map(repr, close))}?" if close else ""


def _notes(error: SbpError, options: ClientOptions) -> list[str]:
    """Return what helps to understand an error; nothing if the cluster does not answer at once."""
    ids = set(map(int, _NUMBERED.findall(str(error))))
    absent = _ABSENT.findall(str(error)) if isinstance(error, NotFoundError) else []
    if not ids and not absent:
        return []
    try:
        # The caller's client may be a patient one: it would wait for servers that are down.
        with _client(options, _AT_ONCE_MS) as client:
            found = client.find_streams([*ids]) if ids else []
            known = [each.name for each in client.list_streams() if each.name] if absent else []
    except SbpError:
        return []
    notes = [f"stream {each.stream_id} is {each.name!r}" for each in found if each.name]
    return [*notes, *filter(None, [suggestion(absent, known)])]


def connecting(options: TlsOptions, restoring: str = "") -> Connecting:
    """Return how the options of a client let it connect, also to restore the backup of an id."""
    from sbp_core.client import Connecting, RequestedFeatures, Tls

    files = (options.tls_ca, options.tls_cert, options.tls_key)
    return Connecting(
        features=RequestedFeatures(restoring=restoring),
        tls=Tls(*files) if any(files) else None,
        credentials=_maybe_credentials(options.token_file),
    )


def _maybe_credentials(token_file: str | None) -> Credentials | None:
    from sbp_core.client import Credentials

    if token_file is not None:
        return Credentials(token_file)
    return Credentials(token_env=_TOKEN_VARIABLE) if os.environ.get(_TOKEN_VARIABLE) else None


def parse_stream(text: str) -> int | str:
    """Return the stream id that `text` is when it has digits only, otherwise `text`, a name."""
    if not (text.isascii() and text.isdigit()):
        return text
    if int(text) >= 2**63:
        raise ConfigurationError(f"stream id {text} is not within 0..{2**63 - 1}")
    return int(text)


def checked_new_name(text: str) -> str:
    """Return the name of a stream that is to be created. Raises ConfigurationError for an id."""
    if isinstance(parse_stream(text), int):
        raise ConfigurationError(
            f"stream name {text!r} has only digits and would be taken for an id; choose another"
        )
    return text


def find_stream(client: Client, text: str) -> StreamInfo:
    """Return the stream with this name or id. Raises NotFoundError."""
    return client.describe_streams([parse_stream(text)])[0]


def find_reach(client: Client, stream_ids: Sequence[int]) -> dict[int, Reach]:
    """Return how far streams, by id, can be read now, within seconds. Raises SbpError.

    The end of a stream whose primary is down stays unknown.
    """
    positions = dict.fromkeys(stream_ids)
    give_up_at = time.monotonic() + _ANSWER_MS / 1000
    while True:
        found = client.reach(positions, timeout_ms=_ANSWER_MS, spared={})
        if not any(each.unavailable for each in found.values()) or time.monotonic() > give_up_at:
            return found
        time.sleep(_AGAIN_SECONDS)


def find_sizes(client: Client, stream_ids: Sequence[int]) -> dict[int, int]:
    """Return the bytes that streams, by id, take in one replica, where servers tell them soon."""
    return client.stored_bytes(stream_ids, timeout_ms=_ANSWER_MS)


def titled(info: StreamInfo) -> str:
    """Return how lines for people name a stream."""
    return f"{info.label} (id {info.stream_id})"


_NAMES_MAX: Final = 1_000


def _find_names(given: Mapping[str, Any], prefix: str) -> list[str]:
    """Return the names that begin with `prefix`; none if the cluster does not answer at once.

    `given` are the options of the command line so far.
    """
    files: dict[str, Any] = {each.name: given.get(each.name) for each in fields(TlsOptions)}
    options = ClientOptions(**files, endpoint=given.get("endpoint") or DEFAULT_ENDPOINT)
    try:
        with connect(options, _AT_ONCE_MS) as client:
            names = [each.name for each in client.list_streams()]
    except SbpError:
        return []
    return [name for name in names if name and name.startswith(prefix)][:_NAMES_MAX]


class StreamValue(click.ParamType[str]):
    """The name or id of a stream. Shells complete the names, if a cluster answers at once."""

    name = "STREAM"

    def shell_complete(
        self, ctx: click.Context, param: click.Parameter, incomplete: str
    ) -> list[CompletionItem]:
        """Return the names that begin so, as the options before them reach a cluster; or none."""
        names = _find_names(ctx.params, incomplete)
        return [CompletionItem(name) for name in names]


STREAM: Final = StreamValue()
