"""The features on which the two ends of a connection agree with its first HEARTBEAT (an extension).

The client offers features, and the server answers with the features that it accepts. A feature
that is absent from the answer is declined, so a server that knows no features declines all. The
server uses a feature from the frame after its answer on, the client from the first frame after the
answer arrived.

    feature           data of the offer           data of the answer
    compression       codecs, comma-separated     the codec: zstd
    deadline          -                           -
    connection-id     -                           u64, big-endian: the connection's number
    handler-duration  -                           -
    isolation         name of the class           the same
    header-checksum   -                           -
    idempotent-append -                           -
    transactions      -                           -
    schemas           -                           -
    groups            -                           -
    compare-and-set   -                           -
    replication       versions, a byte each       the highest of them that it knows
    identity          the token                   u64, big-endian: when the identity
                                                  ends, in ms since the epoch
    restore           id of the backup            the same
    record-bytes      u32, big-endian: the        u32, big-endian: the largest
                      largest record it reads     record that it accepts
"""

from __future__ import annotations

import enum
import re
import struct
from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Final

from sbp_core import limits
from sbp_core.errors import ConfigurationError
from sbp_core.record_sizes import DEFAULT, LARGEST, RecordSizes
from sbp_core.wire.headers import Feature

_CONNECTION_ID: Final = struct.Struct(">Q")
_IDENTITY_END: Final = struct.Struct(">Q")
_RECORD_BYTES: Final = struct.Struct(">I")
_CODEC: Final = b"zstd"
REPLICATION_VERSIONS: Final = b"\x01"
"""The versions of replication that this release knows, a byte each.

A version stands for the kinds of entries, their portable form (log/portable.py), and the rules of
REPLICATE and READ_ENTRIES. A change that the release before would misread or refuse gets the next
version, which is used only in ranges whose replicas all agreed on it. The former version stays."""
_FIRST_VERSION: Final = b"\x01"
"""Stands for an offer without data, which releases without versions make."""
_BACKUP_ID: Final = re.compile(rb"[A-Za-z0-9._-]{1,64}", re.ASCII)
_ISOLATION_CLASS: Final = re.compile(
    rb"[A-Za-z0-9._-]{1,%d}" % limits.ISOLATION_CLASS_LENGTH_MAX, re.ASCII
)


class FeatureName(enum.StrEnum):
    """The features that this version knows."""

    COMPRESSION = "compression"
    DEADLINE = "deadline"
    CONNECTION_ID = "connection-id"
    HANDLER_DURATION = "handler-duration"
    ISOLATION = "isolation"
    HEADER_CHECKSUM = "header-checksum"
    IDEMPOTENT_APPEND = "idempotent-append"
    TRANSACTIONS = "transactions"
    PART_COLUMNS = "part-columns"
    SCHEMAS = "schemas"
    GROUPS = "groups"
    COMPARE_AND_SET = "compare-and-set"
    REPLICATION = "replication"
    IDENTITY = "identity"
    RESTORE = "restore"
    RECORD_BYTES = "record-bytes"


@dataclass(frozen=True, slots=True)
class Agreement:
    """The agreed features of a connection. The default has none, as with a peer without features.

    `has_compression`: payloads may be compressed. `has_deadline`: the server drops requests
    whose callers no longer wait. `connection_id`: the server's number for the connection, which
    its log shows. `has_handler_duration`: answers report how long the server took. `isolation`: the
    class in which the server schedules the connection's reads. `has_header_checksum`: checksums
    cover whole frames. `has_idempotent_append`: a batch that its writer numbers is appended once.
    `has_transactions`: batches may be staged, and are appended or dropped together.
    `has_part_columns`: a decision may name its parts column by column. `has_schemas`: streams may
    have schemas. `has_groups`: consumer groups may have members. `has_compare_and_set`: streams
    may have properties, and changes of properties and cursors may be conditional.
    `replication_version`: the version of replication, one of REPLICATION_VERSIONS; 0 without
    replication. `restoring`: the id of the backup that the client restores, empty if it restores
    none. `sizes`: the sizes that the peer accepts (a server) or reads (a client).
    """

    has_compression: bool = False
    has_deadline: bool = False
    connection_id: int | None = None
    has_handler_duration: bool = False
    isolation: str = ""
    has_header_checksum: bool = False
    has_idempotent_append: bool = False
    has_transactions: bool = False
    has_part_columns: bool = False
    has_schemas: bool = False
    has_groups: bool = False
    has_compare_and_set: bool = False
    replication_version: int = 0
    restoring: str = ""
    sizes: RecordSizes = DEFAULT

    def has(self, feature: FeatureName) -> bool:
        """Whether a feature that a call needs was agreed on."""
        return bool(getattr(self, _FIELDS[feature]))


_FLAGS: Final = {
    FeatureName.DEADLINE: "has_deadline",
    FeatureName.HEADER_CHECKSUM: "has_header_checksum",
    FeatureName.IDEMPOTENT_APPEND: "has_idempotent_append",
    FeatureName.TRANSACTIONS: "has_transactions",
    FeatureName.PART_COLUMNS: "has_part_columns",
    FeatureName.SCHEMAS: "has_schemas",
    FeatureName.GROUPS: "has_groups",
    FeatureName.COMPARE_AND_SET: "has_compare_and_set",
    FeatureName.HANDLER_DURATION: "has_handler_duration",
}
"""The features without data, and their fields of an Agreement."""
_FIELDS: Final = {**_FLAGS, FeatureName.REPLICATION: "replication_version"}

NOTHING: Final = Agreement()


@dataclass(frozen=True, slots=True)
class RequestedFeatures:
    """The optional features that a client requests for its connections; a server may decline each.

        Connecting(features=RequestedFeatures(compression=True))

    `compression`: large payloads are compressed with zstd, both ways; saves network, costs CPU.
    `isolation`: the name of the class in which range servers schedule the reads of this client,
    apart from the reads of other classes: 1 to ISOLATION_CLASS_LENGTH_MAX letters, digits, `.`, `_`
    and `-`. `handler_duration`: answers report how long the server worked. `restoring`: the id of
    the backup that the client restores; the cluster refuses other clients until the restore is
    done. Raises ConfigurationError for an invalid `isolation`.
    """

    compression: bool = False
    isolation: str = ""
    handler_duration: bool = False
    restoring: str = ""

    def __post_init__(self) -> None:
        if self.isolation and not _ISOLATION_CLASS.fullmatch(self.isolation.encode()):
            raise ConfigurationError(
                f"isolation class {self.isolation!a} is no name; expected 1 to"
                f" {limits.ISOLATION_CLASS_LENGTH_MAX} letters, digits, '.', '_' or '-'"
            )


NO_FEATURES: Final = RequestedFeatures()

RECORD_BYTES_OFFER: Final = Feature(
    FeatureName.RECORD_BYTES, _RECORD_BYTES.pack(LARGEST.record_bytes)
)
"""States the largest record that a client reads, and asks for the largest that a server accepts."""


def identity_offer(token: bytes) -> Feature:
    """Return the offer of a client's token. The token is a secret: never log or store it."""
    return Feature(FeatureName.IDENTITY, token)


def identity_answer(end_ms: int) -> Feature:
    """Return the answer of a server that accepts a token: when the identity ends."""
    return Feature(FeatureName.IDENTITY, _IDENTITY_END.pack(end_ms))


def maybe_token(offered: Iterable[Feature]) -> bytes | None:
    """Return the token that a client offers, None if it offers none."""
    found = (each.data for each in offered if each.name == FeatureName.IDENTITY)
    return next(found, None)


def maybe_identity_end(answered: Iterable[Feature]) -> int | None:
    """Return when an identity ends, in ms since the epoch; None if the server accepted no token."""
    data = maybe_token(answered)
    if data is None or len(data) != _IDENTITY_END.size:
        return None
    return int(*_IDENTITY_END.unpack(data))


def offer(
    features: RequestedFeatures, *, replication_versions: bytes = REPLICATION_VERSIONS
) -> tuple[Feature, ...]:
    """Return the features that a client's first HEARTBEAT offers."""
    offered = [
        Feature(FeatureName.DEADLINE),
        Feature(FeatureName.CONNECTION_ID),
        Feature(FeatureName.HEADER_CHECKSUM),
        Feature(FeatureName.IDEMPOTENT_APPEND),
        Feature(FeatureName.TRANSACTIONS),
        Feature(FeatureName.PART_COLUMNS),
        Feature(FeatureName.SCHEMAS),
        Feature(FeatureName.GROUPS),
        Feature(FeatureName.COMPARE_AND_SET),
        Feature(FeatureName.REPLICATION, replication_versions),
        RECORD_BYTES_OFFER,
    ]
    if features.compression:
        offered.append(Feature(FeatureName.COMPRESSION, _CODEC))
    if features.handler_duration:
        offered.append(Feature(FeatureName.HANDLER_DURATION))
    if features.isolation:
        offered.append(Feature(FeatureName.ISOLATION, features.isolation.encode()))
    if features.restoring:
        offered.append(Feature(FeatureName.RESTORE, features.restoring.encode()))
    return tuple(offered)


def accept(
    offered: Iterable[Feature],
    connection_id: int,
    sizes: RecordSizes = DEFAULT,
    *,
    replication_versions: bytes = REPLICATION_VERSIONS,
) -> tuple[Agreement, tuple[Feature, ...]]:
    """Return the agreement of a server that accepts records of `sizes`, and its answer's features.

    Unknown features, and features with invalid data, are declined. If a feature is offered twice,
    the first offer counts.
    """
    answer: dict[str, Feature] = {}
    read = DEFAULT
    for feature in offered:
        accepted = _maybe_accept(feature, connection_id, sizes, replication_versions)
        if accepted is None or feature.name is None or feature.name in answer:
            continue
        answer[feature.name] = accepted
        if feature.name == FeatureName.RECORD_BYTES:
            read = _sizes(feature.data)
    features = tuple(answer.values())
    return replace(_agreement(features, replication_versions), sizes=read), features


def settle(
    offered: Iterable[Feature],
    answered: Iterable[Feature],
    *,
    replication_versions: bytes = REPLICATION_VERSIONS,
) -> Agreement:
    """Return the agreement of a client. Answered features that were not offered do not count."""
    names = {feature.name for feature in offered}
    return _agreement(
        (feature for feature in answered if feature.name in names), replication_versions
    )


def _maybe_accept(
    feature: Feature, connection_id: int, sizes: RecordSizes, versions: bytes
) -> Feature | None:
    match feature.name:
        case name if name in _FLAGS:
            return Feature(name)
        case FeatureName.CONNECTION_ID:
            return Feature(feature.name, _CONNECTION_ID.pack(connection_id))
        case FeatureName.RECORD_BYTES if len(feature.data) == _RECORD_BYTES.size:
            return Feature(feature.name, _RECORD_BYTES.pack(sizes.record_bytes))
        case FeatureName.REPLICATION if version := _newest_common(feature.data, versions):
            return Feature(feature.name, bytes((version,)))
        case FeatureName.COMPRESSION if _CODEC in feature.data.split(b","):
            return Feature(feature.name, _CODEC)
        case FeatureName.ISOLATION if _ISOLATION_CLASS.fullmatch(feature.data):
            return feature
        case FeatureName.RESTORE if _BACKUP_ID.fullmatch(feature.data):
            return feature
        case _:
            return None


def _agreement(features: Iterable[Feature], versions: bytes) -> Agreement:
    data = {feature.name: feature.data for feature in features}
    number = data.get(FeatureName.CONNECTION_ID, b"")
    isolation = data.get(FeatureName.ISOLATION, b"")
    return Agreement(
        has_compression=data.get(FeatureName.COMPRESSION) == _CODEC,
        connection_id=int.from_bytes(number, "big") if len(number) == 8 else None,
        isolation=isolation.decode("ascii", "replace"),
        replication_version=_agreed_version(data.get(FeatureName.REPLICATION), versions),
        restoring=data.get(FeatureName.RESTORE, b"").decode("ascii", "replace"),
        sizes=_sizes(data.get(FeatureName.RECORD_BYTES, b"")),
        **{field: name in data for name, field in _FLAGS.items()},
    )


def _newest_common(offered: bytes, known: bytes) -> int:
    """Return the highest version of replication that both ends know, 0 if there is none."""
    return max({*(offered or _FIRST_VERSION)} & {*known}, default=0)


def _agreed_version(answered: bytes | None, known: bytes) -> int:
    """Return the version that a server chose, 0 if it chose none that was offered."""
    if answered is None or len(answered or _FIRST_VERSION) > 1:
        return 0
    return _newest_common(answered, known)


def _sizes(data: bytes) -> RecordSizes:
    return RecordSizes(*_RECORD_BYTES.unpack(data)) if len(data) == _RECORD_BYTES.size else DEFAULT
