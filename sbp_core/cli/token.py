"""`sbp token`: keys and tokens of small installations, which have no issuer of their own."""

from __future__ import annotations

import os
import time
from json import dumps, loads
from pathlib import Path
from typing import Any, Final

import click

from sbp_core import limits
from sbp_core.cli.commands import Actions
from sbp_core.cli.options import DURATION_MS, PATH, json_option
from sbp_core.cli.output import write_json, write_line, write_result
from sbp_core.errors import ConfigurationError
from sbp_core.regular_files import open_private, read_regular

token: Final = Actions("token", help="Make keys and tokens of clients.")

_private_file: Final = click.option(
    "--private-file",
    type=PATH,
    required=True,
    help="File of the private key; keep it where no server and no client is.",
)


@token.command("keys", example="sbp token keys --private-file private.json --jwks-file jwks.json")
@_private_file
@click.option("--jwks-file", type=PATH, required=True, help="New file for the public key.")
@json_option
def make_keys(private_file: str, jwks_file: str, *, json: bool) -> int:
    """Make the keys of an issuer.

    One is private: tokens are signed with it. The public one is in a JSON Web Key Set, for
    jwks_file in [auth] of the servers. No file is overwritten.
    """
    from sbp_core.access.keys import new_key

    private, public = new_key("EdDSA")
    paths = [Path(private_file), Path(jwks_file)]
    for path in paths:
        if path.is_symlink() or path.exists():
            raise ConfigurationError(
                f"{path} exists, and is not overwritten: tokens that were signed with its key would"
                " end; choose another file"
            )
    for path, content in zip(paths, (private, {"keys": [public]}), strict=True):
        _write_new(path, dumps(content, indent=2))
    if json:
        write_json({"private_file": private_file, "jwks_file": jwks_file})
        return 0
    write_line(f"private key: {paths[0]}")
    write_line(f"public key: {paths[1]}")
    return 0


@token.command(
    "issue",
    example="sbp token issue etl --private-file private.json --issuer acme --audience sbp"
    " --valid-for 30d",
)
@click.argument("subject", help="The name of the client; without =.")
@_private_file
@click.option("--issuer", required=True, metavar="TEXT", help="Issuer in [auth].")
@click.option("--audience", required=True, metavar="TEXT", help="Audience in [auth].")
@click.option(
    "--valid-for",
    type=DURATION_MS,
    required=True,
    help="Time such as 12h or 30d; a token cannot be taken back before.",
)
@click.option(
    "--out",
    type=PATH,
    help="File to write it to, in one step, also over an old one. [default: standard output]",
)
@json_option
def issue_token(
    subject: str,
    *,
    private_file: str,
    issuer: str,
    audience: str,
    valid_for: int,
    out: str | None,
    json: bool,
) -> int:
    """Make a token for a client, which is a secret like a password: print it, or write a file."""
    from sbp_core.access.identity import SUBJECT_LENGTH_MAX, is_token_subject
    from sbp_core.access.keys import sign

    if not is_token_subject(subject):
        raise ConfigurationError(
            f"subject {subject!a}: expected 1 to {SUBJECT_LENGTH_MAX} printable characters"
            " without ="
        )
    now = int(time.time())
    claims = {
        "iss": issuer,
        "aud": audience,
        "sub": subject,
        "iat": now,
        "exp": now + valid_for // 1000,
    }
    private = _read_private(Path(private_file))
    try:
        signed = sign(private, dumps(claims, separators=(",", ":")).encode())
    except ValueError as error:
        raise ConfigurationError(f"private file {private_file}: {error}") from None
    if out is None:
        write_result({"token": signed}, signed, is_json=json)
        return 0
    target = Path(out)
    fresh = target.with_name(f".{target.name}.{os.getpid()}.new")
    _write_new(fresh, signed)
    fresh.replace(target)
    return 0


def _read_private(path: Path) -> dict[str, Any]:
    try:
        found = loads(read_regular(path, limits.SMALL_FILE_BYTES_MAX))
    except OSError as error:
        raise ConfigurationError(f"private file {path} cannot be read: {error.strerror}") from error
    except (ValueError, RecursionError):
        found = None  # without its text, which may have a key
    if not isinstance(found, dict):
        raise ConfigurationError(
            f"private file {path} has no key: make one with `sbp token keys`"
        ) from None
    return found


def _write_new(path: Path, text: str) -> None:
    """Write a new file, for its owner only."""
    try:
        descriptor = open_private(path, os.O_WRONLY | os.O_EXCL)
        with os.fdopen(descriptor, "w", encoding="utf-8") as file:
            file.write(f"{text}\n")
            file.flush()
            os.fsync(file.fileno())
    except OSError as error:
        raise ConfigurationError(
            f"{path} cannot be written: {error.strerror}; choose another file"
        ) from error
