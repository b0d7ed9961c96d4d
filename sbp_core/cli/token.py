"""`sbp token`: keys and tokens of small installations, which have no issuer of their own."""

from __future__ import annotations

import json
import os
import time
from argparse import ArgumentParser, Namespace
from pathlib import Path
from typing import Any

from sbp_core import limits
from sbp_core.cli.output import write_line
from sbp_core.cli.parsing import Actions, parse_duration_ms, parse_path
from sbp_core.errors import ConfigurationError
from sbp_core.regular_files import open_private, read_regular

_ALGORITHMS = ("EdDSA", "ES256", "RS256")


def add_token(parser: ArgumentParser) -> None:
    """Declare `sbp token` and its actions."""
    actions = Actions(parser)
    keys = actions.add(
        "keys",
        make_keys,
        help="make the keys of an issuer",
        description="Make a private key, with which tokens are signed, and a JSON Web Key Set with"
        " the public one, for jwks_file in [auth] of the servers. No file is overwritten.",
    )
    _add_private_file(keys)
    keys.add_argument(
        "--jwks-file",
        type=parse_path,
        required=True,
        metavar="PATH",
        help="new file for the public key",
    )
    keys.add_argument(
        "--algorithm", choices=_ALGORITHMS, default="EdDSA", help="(default: %(default)s)"
    )
    issuing = actions.add(
        "issue",
        issue_token,
        help="make a token",
        description="Make a token for a client, which is a secret like a password: print it, or"
        " write it to a file.",
    )
    issuing.add_argument("subject", metavar="SUBJECT", help="the name of the client; without =")
    _add_private_file(issuing)
    issuing.add_argument("--issuer", required=True, metavar="TEXT", help="issuer in [auth]")
    issuing.add_argument("--audience", required=True, metavar="TEXT", help="audience in [auth]")
    issuing.add_argument(
        "--valid-for",
        type=parse_duration_ms,
        required=True,
        metavar="TIME",
        help="time such as 12h or 30d; a token cannot be taken back before",
    )
    issuing.add_argument(
        "--out",
        type=parse_path,
        metavar="PATH",
        help="file to write it to, in one step, also over an old one (default: standard output)",
    )


def _add_private_file(parser: ArgumentParser) -> None:
    parser.add_argument(
        "--private-file",
        type=parse_path,
        required=True,
        metavar="PATH",
        help="file of the private key; keep it where no server and no client is",
    )


def make_keys(options: Namespace) -> int:
    """Make the keys of an issuer."""
    from sbp_core.access.keys import new_key

    private, public = new_key(options.algorithm)
    paths = [Path(options.private_file), Path(options.jwks_file)]
    for path in paths:
        if path.is_symlink() or path.exists():
            raise ConfigurationError(
                f"{path} exists, and is not overwritten: tokens that were signed with its key would"
                " end; choose another file"
            )
    for path, content in zip(paths, (private, {"keys": [public]}), strict=True):
        _write_new(path, json.dumps(content, indent=2))
    write_line(f"private key: {paths[0]}")
    write_line(f"public key: {paths[1]}")
    return 0


def issue_token(options: Namespace) -> int:
    """Print a token, or write it to a file."""
    from sbp_core.access.identity import SUBJECT_LENGTH_MAX, is_token_subject
    from sbp_core.access.keys import sign

    if not is_token_subject(options.subject):
        raise ConfigurationError(
            f"subject {options.subject!a}: expected 1 to {SUBJECT_LENGTH_MAX} printable characters"
            " without ="
        )
    now = int(time.time())
    claims = {
        "iss": options.issuer,
        "aud": options.audience,
        "sub": options.subject,
        "iat": now,
        "exp": now + options.valid_for // 1000,
    }
    private = _read_private(Path(options.private_file))
    try:
        token = sign(private, json.dumps(claims, separators=(",", ":")).encode())
    except ValueError as error:
        raise ConfigurationError(f"private file {options.private_file}: {error}") from None
    if options.out is None:
        write_line(token)
        return 0
    target = Path(options.out)
    fresh = target.with_name(f".{target.name}.{os.getpid()}.new")
    _write_new(fresh, token)
    fresh.replace(target)
    return 0


def _read_private(path: Path) -> dict[str, Any]:
    try:
        found = json.loads(read_regular(path, limits.SMALL_FILE_BYTES_MAX))
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
