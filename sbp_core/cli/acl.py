"""`sbp acl`: the rights of identities."""

from __future__ import annotations

from argparse import ArgumentParser, Namespace
from collections.abc import Callable
from dataclasses import asdict
from typing import Final, TypeVar

from sbp_core.access.identity import parse_subject
from sbp_core.access.rights import GRANTABLE, Grant, checked_grant, checked_subject
from sbp_core.cli.connect import connect
from sbp_core.cli.output import one_line, write_json, write_line, write_notice, write_table
from sbp_core.cli.parsing import Actions
from sbp_core.errors import ConfigurationError, InvalidRequestError

T = TypeVar("T")

_HEADING: Final = ("SUBJECT", "RIGHT", "PATTERN")


def add_acl(parser: ArgumentParser) -> None:
    """Declare `sbp acl` and its actions."""
    parser.description = (
        "Manage the rights of identities, where servers ask for them. This is for administrators:"
        " they have all rights, and the settings of the servers name them."
    )
    actions = Actions(parser)
    list_parser = actions.add("list", list_grants, is_client=True, help="list who may do what")
    list_parser.add_argument("--subject", metavar="SUBJECT", help="only what this one may do")
    for name, run, shown in (
        ("grant", grant, "give a right to a subject"),
        ("revoke", revoke, "take a right away, as it was granted"),
    ):
        action = actions.add(name, run, is_client=True, help=shown)
        action.add_argument(
            "subject",
            metavar="SUBJECT",
            help="subject of a certificate, such as CN=etl,O=Acme, or of a token",
        )
        action.add_argument(
            "right", metavar="RIGHT", choices=[*map(str, GRANTABLE)], help=", ".join(GRANTABLE)
        )
        action.add_argument(
            "pattern",
            metavar="PATTERN",
            help="name of a stream, or of a group for the right group; the begin of names and *; or"
            " * for all",
        )


def list_grants(options: Namespace) -> int:
    """List the grants of a subject, or all."""
    subject = None if options.subject is None else _checked(checked_subject, options.subject)
    with connect(options) as client:
        found = client.list_grants(subject)
    if options.json:
        for each in found:
            write_json(asdict(each))
    else:
        write_table(
            _HEADING, [(one_line(each.subject), each.right, each.pattern) for each in found]
        )
    return 0


def grant(options: Namespace) -> int:
    """Give a right to a subject; no error if it has it."""
    try:
        parse_subject(options.subject)
    except ValueError as error:
        raise ConfigurationError(f"{options.subject!a} is not a subject: {error}") from error
    changed = _grant_in(options)
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


def revoke(options: Namespace) -> int:
    """Take a grant away; say if there is none, and which others give the subject the same right."""
    changed = _grant_in(options)
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
        patterns = ", ".join(each.pattern for each in left)
        write_line(f"{changed.subject} still has the right {changed.right} on {patterns}")
    return 0


def _grant_in(options: Namespace) -> Grant:
    return _checked(checked_grant, options.subject, options.right, options.pattern)


def _checked(check: Callable[..., T], *values: str) -> T:
    try:
        return check(*values)
    except InvalidRequestError as error:
        raise ConfigurationError(error.message) from error


def _scope(changed: Grant) -> str:
    noun = "groups" if changed.right == "group" else "streams"
    return f"{changed.right} on {noun} {changed.pattern}"
