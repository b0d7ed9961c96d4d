"""One cluster through rounds of faults: three range servers, two placement drivers, PostgreSQL.

Each round has one fault, in an order drawn from SEED; clients get on during it, where a majority is
left, and after it; then everything that is acknowledged is read, by both readers. The cluster is
never new, so that faults meet what earlier ones left behind.
"""

import itertools
import json
import random
import time
import zlib
from collections import Counter, defaultdict
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from statistics import median

import pytest

from sbp_core.client import Client, FetchItem, RetryPolicy
from sbp_core.errors import SbpError
from tests.support.cluster import values_of
from tests.support.faults.endless_traffic import FETCH_BYTES, OnlyFrom, Traffic
from tests.support.faults.nemesis import SERVERS, drawn, faulty_cluster
from tests.support.faults.workload import new_streams

STREAMS = 4


@pytest.mark.faults
@pytest.mark.timeout(600)
def test_a_cluster_lives_through_faults(tmp_path, rng, rounds):
    done = []
    with faulty_cluster(tmp_path) as cluster:
        stream_ids = new_streams(cluster.endpoint, STREAMS, replica_count=SERVERS)
        traffic = Traffic(cluster.endpoint, stream_ids, random.Random(rng.random()))
        cluster.go_on = traffic.go_on
        try:
            with (tmp_path / "rounds.jsonl").open("w") as journal, traffic:
                traffic.go_on()
                for number, fault in zip(range(rounds(4)), drawn(rng), strict=False):
                    done.append(a_round(number, fault, cluster, traffic, rng))
                    print(json.dumps(asdict(done[-1])), file=journal, flush=True)
                traffic.finish()
        except BaseException:
            describe(cluster, traffic, stream_ids)
            raise
        ranges, unsettled = compare_copies(cluster, stream_ids)
    report(done, ranges, unsettled)


def a_round(number, fault, cluster, traffic, rng):
    """Do one fault, and wait until all that was acknowledged is read."""
    print(f"round {number}: {fault.__name__}", flush=True)
    ledger = traffic.ledger
    ledger.worst_append_seconds = ledger.worst_commit_seconds = 0.0
    began_at = time.monotonic()
    fault(cluster, rng)
    traffic.go_on()
    traffic.wait_until_read()
    cluster.check_alive()
    seconds = time.monotonic() - began_at
    worst = ledger.worst_append_seconds, ledger.worst_commit_seconds
    return Round(number, fault.__name__, seconds, *worst, traffic.count)


def describe(cluster, traffic, stream_ids):
    """Print the state of the clients and of the streams."""
    names = {each.endpoint: each.name for each in cluster.servers}
    print(f"logs: {cluster.folder}; successes of writers: {traffic.acknowledged}")
    print(f"unread: {traffic.unread(traffic.ledger.acknowledged)}")
    with suppress(SbpError), Client(cluster.endpoint, timeout_ms=5_000) as client:
        for stream_id, ranges in client.list_ranges(stream_ids).items():
            last, servers = ranges[-1], [names[each] for each in ranges[-1].servers]
            print(f"stream {stream_id}: {servers}, the primary first, have {last}")


@dataclass(frozen=True)
class Round:
    """A fault, and how the clients got on."""

    number: int
    fault: str
    seconds: float
    worst_append_seconds: float
    worst_commit_seconds: float
    acknowledged: int


def compare_copies(cluster, stream_ids):
    """Read all copies of all sealed ranges; return how many ranges there are, and unsettled copies.

    Every copy that can be read is the same.
    """
    unsettled = Counter()
    digests = defaultdict(set)
    with Client(cluster.endpoint) as client:
        ranges = client.list_ranges(stream_ids)
        context = replace(client.on_loop._context, policy=RetryPolicy(budget_ms=0))
        for server in cluster.servers:
            client.on_loop._context = replace(context, replicas=OnlyFrom(server.endpoint))
            for each in itertools.chain(*ranges.values()):
                if each.end_offset is None or server.endpoint not in each.servers:
                    continue
                try:
                    digest = digest_of(client, each)
                except SbpError as error:
                    print(f"{server.name}: {error}")
                    unsettled[server.name] += 1
                else:
                    digests[each.stream_id, each.range_index].add(digest)
    assert all(len(each) == 1 for each in digests.values()), digests
    return {stream: len(each) for stream, each in ranges.items()}, unsettled


def digest_of(client, piece):
    """A digest of all records of a range. Raises SbpError."""
    offset, digest = piece.start_offset, 0
    while offset < piece.end_offset:
        item = FetchItem(piece.stream_id, offset, piece.end_offset, FETCH_BYTES)
        (outcome,) = client.fetch([item])
        if outcome.error:
            raise outcome.error
        for at, value in values_of(outcome.payload):
            if offset <= at < piece.end_offset:
                assert at == offset, f"gap: offset {at} after {offset - 1} of {piece}"
                digest = zlib.crc32(value, digest)
                offset += 1
    return digest


def report(done, ranges, unsettled):
    """Print the figures of a run."""
    for fault in sorted({each.fault for each in done}):
        of_it = [each for each in done if each.fault == fault]
        print(
            f"{fault}: {len(of_it)} rounds of {spread(each.seconds for each in of_it)};"
            f" worst append {spread(each.worst_append_seconds for each in of_it)},"
            f" worst commit {spread(each.worst_commit_seconds for each in of_it)}"
        )
    print(
        f"{len(done)} rounds, {done[-1].acknowledged} records acknowledged; lost 0, doubled 0,"
        f" reordered 0; ranges {ranges}; copies that are not settled {dict(unsettled)}"
    )


def spread(seconds):
    """The median and the largest."""
    known = sorted(seconds)
    return f"{median(known):.1f} s, once {known[-1]:.1f} s"
