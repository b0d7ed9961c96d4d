"""`sbp acl`: the rights of identities."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict
from typing import Final, TypeVar

import click

from sbp_core.access.identity import parse_subject
from sbp_core.access.rights import GRANTABLE, Grant, checked_grant, checked_subject
from sbp_core.cli.commands import Actions
from sbp_core.cli.connect import connect
from sbp_core.cli.options import ClientOptions, client_options
from sbp_core.cli.output import one_line, write_json, write_line, write_notice, write_table
from sbp_core.errors import ConfigurationError, InvalidRequestError
from sbp_core.wording import listed

T = TypeVar("T")

_HEADING: Final = ("SUBJECT", "RIGHT", "PATTERN")


acl: Final = Actions(
    "acl",
    help="Manage the rights of identities, where servers ask for them."
    "\n\n"
    "This is for administrators: they have all rights, and the settings of the servers name them.",
)


def _grant_arguments(run: Callable[..., int]) -> Callable[..., int]:
    for argument in (
        click.argument(
            "pattern",
            help="Name of a stream, or of a group for the right group; the begin of names and *; or"
            " * for all.",
        ),
        click.argument(
            "right",
            type=click.Choice([*map(str, GRANTABLE)]),
            metavar="RIGHT",
            help=f"{', '.join(GRANTABLE)}.",
        ),
        click.argument(
            "subject",
            help="Subject of a certificate, such as CN=etl,O=Acme, or of a token.",
        ),
    ):
        run = argument(run)
    return run


@acl.command("list", example="sbp acl list --subject CN=etl")
@click.option("--subject", metavar="SUBJECT", help="Only what this one may do.")
@client_options
def list_grants(options: ClientOptions, subject: str | None) -> int:
    """List who may do what: the grants of a subject, or all."""
    checked = None if subject is None else _checked(checked_subject, subject)
    with connect(options) as client:
        found = client.list_grants(checked)
    if options.json:
        for each in found:
            write_json(asdict(each))
    else:
        write_table(
            _HEADING, [(one_line(each.subject), each.right, each.pattern) for each in found]
        )
    return 0


@acl.command("grant", example="sbp acl grant CN=etl append 'orders-*'")
@_grant_arguments
@client_options
def grant(options: ClientOptions, subject: str, right: str, pattern: str) -> int:
    """Give a right to a subject; no error if it has it."""
    try:
        parse_subject(subject)
    except ValueError as error:
        raise ConfigurationError(f"{subject!a} is not a subject: {error}") from error
    changed = _checked(checked_grant, subject, right, pattern)
    with connect(options) as client:
        client.change_grants([changed])
    if options.json:
        write_json(asdict(changed))
    else:
        write_line(f"{changed.subject} has the right {_scope(changed)}")
    first = changed.subject.partition(",")[0]
    if ",CN=" in changed.subject and not first.startswith("CN="):
        write_notice(
            f"the subject begins with {first}; if that of the certificate begins with CN=, grant"
            " the right to that one: `openssl x509 -noout -subject -nameopt RFC2253` shows it"
        )
    return 0


@acl.command("revoke", example="sbp acl revoke CN=etl append 'orders-*'")
@_grant_arguments
@client_options
def revoke(options: ClientOptions, subject: str, right: str, pattern: str) -> int:
    """Take a right away, as it was granted; show which other grants give the subject the same."""
    changed = _checked(checked_grant, subject, right, pattern)
    with connect(options) as client:
        before = client.list_grants(changed.subject)
        client.change_grants([changed], is_revoked=True)
    if options.json:
        write_json(asdict(changed))
    elif changed in before:
        write_line(f"revoked: {changed.subject}, {_scope(changed)}")
    else:
        write_notice(
            f"{changed.subject} has no grant of {_scope(changed)}; see `sbp acl list --subject"
            f" {changed.subject}`"
        )
    left = [each for each in before if each.right == changed.right and each != changed]
    if left and not options.json:
        patterns = listed([each.pattern for each in left])
        write_line(f"{changed.subject} still has the right {changed.right} on {patterns}")
    return 0


def _checked(check: Callable[..., T], *values: str) -> T:
    try:
        return check(*values)
    except InvalidRequestError as error:
        raise ConfigurationError(error.message) from error


def _scope(changed: Grant) -> str:
    noun = "groups" if changed.right == "group" else "streams"
    return f"{changed.right} on {noun} {changed.pattern}"
