"""Removing backups, while the place has the mark of one that is being taken, or was killed."""

import asyncio
import stat
from datetime import UTC, datetime, timedelta

import pytest

from sbp_core.backup.format import BackupError, maybe_begun_at, new_backup_id
from sbp_core.backup.marks import removing, taking, taking_mark
from sbp_core.backup.storage import BackupStorage
from sbp_core.backup.upkeep import prune


def test_an_id_has_the_time_at_which_the_backup_began():
    begun_at = datetime(2026, 11, 26, 7, 38, 52, 673_000, UTC)
    assert new_backup_id(begun_at).startswith("20261126T073852.673-")
    assert maybe_begun_at(new_backup_id(begun_at)) == begun_at
    assert maybe_begun_at("another") is None


def test_the_mark_of_a_dead_backup_is_named_with_its_age_and_what_to_do(tmp_path):
    killed = new_backup_id(datetime.now(UTC) - timedelta(minutes=125))

    async def main():
        place = BackupStorage.open(str(tmp_path))
        for each in (killed, "foreign"):
            await place.put(taking_mark(each), b"")
        with pytest.raises(BackupError) as caught:
            await prune(place, 1)
        await place.delete([taking_mark(killed), taking_mark("foreign")])
        assert (await prune(place, 1)).backup_ids == ()
        return str(caught.value)

    message = asyncio.run(main())
    assert f"{killed}, begun 2 h 5 min ago; foreign. Wait" in message
    objects = [f"{tmp_path}/running/{each}" for each in (killed, "foreign")]
    assert f"remove {' and '.join(objects)}, and try again" in message


def test_backups_are_not_taken_while_some_are_removed(tmp_path):
    """A backup may be about to use a chunk again that belongs to those which are removed."""

    async def main():
        place = BackupStorage.open(str(tmp_path))
        async with removing(place):
            with pytest.raises(BackupError, match="no backup was taken"):
                async with taking(place, new_backup_id(datetime.now(UTC))):
                    pass
        async with taking(place, new_backup_id(datetime.now(UTC))):
            with pytest.raises(BackupError, match="nothing was removed"):
                await prune(place, 1)
        assert (await prune(place, 1)).backup_ids == ()

    asyncio.run(main())


def test_objects_are_for_their_owner_only(tmp_path):
    place = BackupStorage.open(str(tmp_path / "backups"), is_new=True)
    asyncio.run(place.put("chunks/a/b", b"secret"))
    modes = {path: stat.S_IMODE(path.stat().st_mode) for path in tmp_path.rglob("*")}
    assert set(modes.values()) == {0o700, 0o600}
    assert [path.name for path, mode in modes.items() if mode == 0o600] == ["b"]
