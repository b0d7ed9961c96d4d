"""A server applies what it can when SIGHUP asks for it, and logs what it did."""

import gc
import logging
import re

import pytest

from sbp_core.cli import reloading as module
from sbp_core.cli.reloading import Reloader
from sbp_core.cli.service_manager import ServiceManager
from sbp_core.server import quota_rules
from sbp_core.server.quota_rules import QuotaFile
from sbp_core.settings.configuration import SERVE
from tests.support.machines import parsed


class Log:
    """The log of a process, on standard error."""

    has_file = False

    def apply(self, level, form):
        self.applied = level, form


OTHER = "(files of TLS|keys of tokens) read again"
OTHER_FILES = re.compile(f"(, {OTHER})+$|{OTHER}, ")
"""Other tests leave clients with such files, and the process reads them again, too."""


@pytest.fixture
def reloading(tmp_path, caplog, request):
    """A configuration file, a server with it, and a function that reloads.

    It returns what is logged of settings and quotas.
    """
    gc.collect()  # quotas of servers of other tests
    caplog.set_level(logging.INFO, "sbp_core")
    path = tmp_path / "server.toml"
    path.write_text(getattr(request, "param", ""), encoding="utf-8")
    options = parsed("serve", "--config", str(path))
    reloader = Reloader(
        *(SERVE, options, SERVE.load(options), Log()),
        audit_file=None,
        manager=ServiceManager({}),
    )

    def reload():
        caplog.clear()
        reloader.reload()
        return [
            (each.levelname, OTHER_FILES.sub("", each.getMessage()))
            for each in caplog.records
            if each.name in (module.__name__, quota_rules.__name__)
        ]

    return path, reloader, reload


def test_a_reload_is_an_event_and_each_key_that_needs_a_restart_a_warning(reloading):
    path, reloader, reload = reloading
    path.write_text(
        '[serve]\nlog_level = "debug"\n[log]\nformat = "json"\nfile = "log"\n'
        "[range_server]\nsegment_bytes = 134217728\n",
        encoding="utf-8",
    )
    (event, *late) = reload()
    assert event == ("INFO", "reloaded at SIGHUP: log_level is debug, log_format is json")
    assert [level for level, _ in late] == 2 * ["WARNING"]
    names = [text.partition(": ")[0] for _, text in late]
    assert sorted(names) == [
        "setting needs a restart key=file in [log]",
        "setting needs a restart key=segment_bytes in [range_server]",
    ]
    assert reloader.current.log_level == "debug"
    assert reloader.current.log_file is None


def test_quotas_where_there_were_none_need_a_restart(reloading):
    path, _, reload = reloading
    path.write_text("[quotas]\nconnections = 1\n", encoding="utf-8")
    _, (level, text) = reload()
    assert (level, text.partition(": ")[0]) == ("WARNING", "setting needs a restart key=[quotas]")


@pytest.mark.parametrize("reloading", ["[quotas]\nconnections = 1\n"], indirect=True)
def test_quotas_that_are_removed_do_not(reloading):
    path, _, reload = reloading
    file = QuotaFile(path, has_identities=True)
    path.write_text("", encoding="utf-8")
    assert reload() == [
        ("INFO", "quota changed identity=* key=connections former=1 value=0"),
        ("INFO", "reloaded at SIGHUP: quotas read again"),
    ]
    assert not file.rules().has_any


@pytest.mark.parametrize("reloading", ["[quotas]\nconnections = 1\n"], indirect=True)
def test_each_quota_that_changed_is_named_once(reloading):
    path, _, reload = reloading
    files = [QuotaFile(path, has_identities=True) for _ in range(2)]
    path.write_text(
        '[quotas]\nconnections = 2\n[quotas."O=Acme, CN=etl"]\nrequests_per_s = 7\n',
        encoding="utf-8",
    )
    found = reload()
    assert found == [
        ("INFO", "quota changed identity=* key=connections former=1 value=2"),
        ("INFO", "quota changed identity=O=Acme,CN=etl key=connections former=1 value=2"),
        ("INFO", "quota changed identity=O=Acme,CN=etl key=requests_per_s former=0 value=7"),
        ("INFO", "reloaded at SIGHUP: quotas read again"),
    ]
    assert reload() == found[-1:]
    del files
