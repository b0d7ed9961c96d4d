"""The names of streams, for shells that complete them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields
from typing import Any, Final

from sbp_core.cli.client_options import DEFAULT_ENDPOINT, ClientOptions, TlsOptions
from sbp_core.cli.connect import AT_ONCE, connect
from sbp_core.errors import SbpError

_NAMES_MAX: Final = 1_000


def find_names(given: Mapping[str, Any], prefix: str) -> list[str]:
    """Return the names that begin with `prefix`; none if the cluster does not answer at once.

    `given` are the options of the command line so far.
    """
    files: dict[str, Any] = {each.name: given.get(each.name) for each in fields(TlsOptions)}
    options = ClientOptions(**files, endpoint=given.get("endpoint") or DEFAULT_ENDPOINT)
    try:
        with connect(options, AT_ONCE) as client:
            names = [each.name for each in client.list_streams()]
    except SbpError:
        return []
    return [name for name in names if name and name.startswith(prefix)][:_NAMES_MAX]
