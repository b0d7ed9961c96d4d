"""SIGHUP: what a process that serves reads and opens again, and what needs a restart."""

from __future__ import annotations

import logging
import signal
import sys
import threading
from collections.abc import Mapping
from dataclasses import fields, replace
from pathlib import Path
from typing import Any, Final

from sbp_core import tls, tls_expiry
from sbp_core.cli.logs import ProcessLog
from sbp_core.cli.service_manager import ServiceManager
from sbp_core.errors import ConfigurationError
from sbp_core.processes import hang_up_all
from sbp_core.server import quota_rules
from sbp_core.server.line_file import LineFile
from sbp_core.settings.configuration import Configuration, ServeSettings

_LOG: Final = logging.getLogger(__name__)
_RELOADED: Final = ("log_level", "log_format")
"""Settings of the configuration file that are applied without a restart."""


class Reloader:
    """Reads again what a server may change while it runs, when SIGHUP asks for it.

    `sbp serve` passes the signal on to its range servers, with its own settings of the log.
    """

    def __init__(
        self,
        configuration: Configuration[Any],
        options: Mapping[str, Any],
        settings: ServeSettings[Any],
        log: ProcessLog,
        *,
        audit_file: LineFile | None,
        manager: ServiceManager,
    ) -> None:
        self._configuration = configuration
        self._options = options
        self._settings = settings
        """As they were at the start."""
        self._log = log
        self._audit_file = audit_file
        self._manager = manager
        self._applied = {name: getattr(settings, name) for name in _RELOADED}
        self._lock = threading.Lock()
        self._is_over = False

    @property
    def current(self) -> ServeSettings[Any]:
        """The settings that hold: those of the start, and what was applied since."""
        return replace(self._settings, **self._applied)

    def watch(self) -> None:
        """Reload at each SIGHUP, from now on, in a thread. The signal is blocked in all threads."""

        def watch() -> None:
            while True:
                if signal.sigtimedwait({signal.SIGHUP}, tls_expiry.INTERVAL_SECONDS) is not None:
                    self.reload()
                with self._lock:
                    if self._is_over:
                        return
                    self._log.report()
                tls_expiry.warn()

        threading.Thread(target=watch, name="hang-ups", daemon=True).start()

    def stop(self) -> None:
        """Do nothing at further signals: the log is about to be closed."""
        with self._lock:
            self._is_over = True

    def reload(self) -> None:
        """Read files again; apply the settings of the log, those of the configuration file."""
        with self._lock:
            if self._is_over:
                return
            self._manager.reloads()
            wanted, restart_for = self._read_settings()
            done = self._apply(wanted)
            hang_up_all(**wanted)
            done += ["files of TLS read again"] if tls.reload_all() else []
            tokens = sys.modules.get("sbp_core.access.tokens")  # loaded where tokens are accepted
            if tokens is not None and tokens.reload_all():
                done.append("keys of tokens read again")
            has_quotas = quota_rules.reload_all()
            if has_quotas is not None:
                done.append("quotas read again" if has_quotas else "quotas refused, see above")
            if self._log.has_file:
                self._log.reopen()
                done.append("log file opened again")
            if self._audit_file is not None:
                self._audit_file.reopen()
                done.append("audit file opened again")
            _LOG.info("reloaded at SIGHUP: %s", ", ".join(done) or "nothing to read again")
            for name in restart_for:
                _LOG.warning(
                    "setting needs a restart key=%s: it has changed in the configuration file, and"
                    " the former value holds until the server is restarted",
                    self._configuration.key_of(name),
                )
            self._manager.reloaded()

    def _read_settings(self) -> tuple[dict[str, str], list[str]]:
        """Return settings of the log, and names of changed settings that need a restart."""
        path = self._options["config"]
        if path is None or not Path(path).exists():
            return self._applied, []
        try:
            fresh = self._configuration.load(self._options)
        except ConfigurationError as error:
            _LOG.error("configuration refused, the former one stays file=%s: %s", path, error)
            return self._applied, []
        wanted = {name: getattr(fresh, name) for name in _RELOADED}
        changed = _changed(self._settings.servers, fresh.servers)
        changed += _changed(self._settings, fresh)
        applied = {"servers", *_RELOADED}
        if self._settings.servers.quotas_file is not None:
            applied.add("quotas_file")  # it is read again, also without the section
        return wanted, [name for name in changed if name not in applied]

    def _apply(self, wanted: dict[str, str]) -> list[str]:
        """Apply settings of the log; return what changed."""
        changed = [
            f"{name} is {value}" for name, value in wanted.items() if value != self._applied[name]
        ]
        if changed:
            self._log.apply(wanted["log_level"], wanted["log_format"])
            self._applied = wanted
        return changed


def _changed(before: Any, after: Any) -> list[str]:
    return [
        each.name
        for each in fields(before)
        if getattr(before, each.name) != getattr(after, each.name)
    ]
