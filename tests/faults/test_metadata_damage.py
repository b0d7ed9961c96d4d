"""Damage to the metadata of a real server that was stopped, or killed, at random places.

Each start either serves exactly what was committed, or ends with an error that names a file of the
metadata. Most rounds open the store in the process; some have a server around it.
"""

import contextlib
import logging
import shutil
from collections import Counter

import pytest

from sbp_core.client import Client, StreamSpec
from sbp_core.cluster import LocalCluster
from sbp_core.errors import SbpError
from sbp_core.pd.metadata.store import open_store
from tests.support.metadata import contents, fill, verdict
from tests.support.real_disks import damaged

STORE_ROUNDS = 300


def metadata_of(cluster):
    """The metadata as the server reports it."""
    with Client(cluster.endpoint) as client:
        streams = client.list_streams()
        return (
            streams,
            client.describe_cursors("group"),
            client.stream_bounds([stream.stream_id for stream in streams]),
        )


def maybe_refusal(cluster):
    """Why the server does not start; None when it does."""
    try:
        cluster.start()
    except SbpError as error:
        return str(error)
    return None


@pytest.mark.parametrize("is_killed", [False, True])
def test_served_metadata_were_committed(tmp_path, rng, rounds, is_killed):
    cluster = LocalCluster(tmp_path / "data")
    folder, copy = cluster.data_dir / "placement-driver", tmp_path / "copy"
    cluster.start()
    with Client(cluster.endpoint) as client:
        specs = [StreamSpec(f"stream-{number}", retention_bytes=number) for number in range(30)]
        ids = [stream.stream_id for stream in client.create_streams(specs)]
        client.commit_cursors("group", {stream_id: 7 * stream_id for stream_id in ids})
        client.seal_streams(ids[:5])
    expected = metadata_of(cluster)
    if is_killed:
        cluster.kill()
    else:
        cluster.stop()
    shutil.copytree(folder, copy)
    refused = 0
    for path in sorted(copy.glob("metadata.*")):
        for number in range(rounds(3)):
            shutil.rmtree(folder)
            shutil.copytree(copy, folder)
            data = bytearray(path.read_bytes())
            place = rng.randrange(len(data))
            if number % 4 == 2:
                del data[place:]
            else:
                data[place] ^= 1 << rng.randrange(8)
            (folder / path.name).write_bytes(data)
            cluster.log_path.write_bytes(b"")
            refusal = maybe_refusal(cluster)
            if refusal is None:
                assert metadata_of(cluster) == expected, (path.name, number, place)
                cluster.kill()
            else:
                assert "metadata." in refusal
                refused += 1
    assert refused > 0
    with contextlib.suppress(RuntimeError):
        cluster.kill()


@pytest.mark.parametrize("is_killed", [False, True])
def test_a_damaged_file_of_a_store(tmp_path, rng, rounds, caplog, is_killed):
    caplog.set_level(logging.CRITICAL, "sbp_core.pd")
    store = open_store(tmp_path / "open")
    fill(store)
    expected = contents(store)
    if is_killed:
        shutil.copytree(tmp_path / "open", tmp_path / "whole")
    store.close()
    if not is_killed:
        shutil.copytree(tmp_path / "open", tmp_path / "whole")
    names = sorted(path.name for path in (tmp_path / "whole").glob("metadata.*"))
    verdicts = Counter()
    for _ in range(rounds(STORE_ROUNDS)):
        folder = tmp_path / "data"
        shutil.rmtree(folder, ignore_errors=True)
        shutil.copytree(tmp_path / "whole", folder)
        name = rng.choice(names)
        what, data = damaged((folder / name).read_bytes(), rng)
        if data is None:
            (folder / name).unlink()
        else:
            (folder / name).write_bytes(data)
        found = verdict(folder, expected)
        assert found is not False, f"{name}: {what}: something else is served, or nothing is named"
        verdicts["refused" if found is None else "served"] += 1
    print(dict(verdicts))
    assert verdicts["refused"]
