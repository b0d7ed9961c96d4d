"""`sbp pd move`: a cluster goes on with its metadata in PostgreSQL."""

import pytest

from sbp_core import connect
from sbp_core.cli.main import main
from tests.support.clock import until
from tests.support.machines import Machines


def values(endpoint, **options):
    with connect(endpoint) as sbp:
        return [each.value for each in sbp.consumer("orders", **options)]


def test_a_cluster_goes_on_with_the_database(tmp_path, postgresql, capfd):
    url, sent = postgresql.new_database(), [b"%d" % each for each in range(10)]
    with Machines(tmp_path, 1) as machines, connect(machines.endpoint) as sbp:
        driver = machines.driver
        sbp.create_stream("orders", properties={"owner": "\u00e9"})
        with sbp.producer("orders", id="loader") as producer:  # decisions, with numbers
            for each in sent[:5]:
                producer.send(each)
        assert values(machines.endpoint, group="billing") == sent[:5]
        words = ["pd", "move", str(driver.data_dir), "--to", url]
        assert main(words) == 2
        assert "is in use" in capfd.readouterr().err
        driver.stop()
        assert main(words) == 0
        assert "rows copied from" in capfd.readouterr().out
        driver.start()  # nothing has changed, so there is a way back
        driver.stop()
        assert main(words) == 2
        assert "name an empty database" in capfd.readouterr().err
        url = words[-1] = postgresql.new_database()
        assert main(words) == 0
        driver.options = ("--store", url)
        driver.start()
        with sbp.producer("orders", id="loader") as producer:
            assert producer.position == 5
            for each in sent[5:]:
                producer.send(each)
        sbp.create_stream("later")
        assert values(machines.endpoint, group="billing") == sent[5:]
        assert values(machines.endpoint) == sent
        sbp.update_properties("orders", {"owner": None, "a": ""}, expected={"owner": "\u00e9"})
        assert sbp.properties("orders") == {"a": ""}
        driver.stop()
        driver.options = ()
        driver.launch()
        until(lambda: "older copy" in driver.log)  # the range server knows what the file lacks


def test_metadata_that_are_damaged_are_not_moved(tmp_path, postgresql, capfd):
    with Machines(tmp_path, 0) as machines:
        machines.driver.stop()
        database = machines.driver.data_dir / "metadata.sqlite"
        with database.open("r+b") as file:
            file.seek(100)
            file.write(b"\xff" * 3_000)
        words = ["pd", "move", str(machines.driver.data_dir), "--to", postgresql.new_database()]
        assert main(words) == 2
    assert "malformed" in capfd.readouterr().err


@pytest.mark.parametrize("url", ["mysql://x/y", "sqlite:///x/metadata.sqlite"])
def test_only_a_postgresql_database_is_moved_to(tmp_path, capfd, url):
    with Machines(tmp_path, 0) as machines:
        machines.driver.stop()
        assert main(["pd", "move", str(machines.driver.data_dir), "--to", url]) == 2
    assert "expected postgresql://" in capfd.readouterr().err
