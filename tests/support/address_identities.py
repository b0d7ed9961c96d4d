"""Identities by the address that a connection comes from: 127.0.0.1 has none, as without auth."""

from sbp_core.access.identity import Identity
from sbp_core.server.dispatch import Dispatcher


class Identities:
    """Gives each identity a loopback address, and the connections from there that identity."""

    def __init__(self, monkeypatch):
        self._by_address = {}
        begin = Dispatcher.begin

        def begin_as(dispatcher, frame, responder, peer_name, *arguments):
            host = peer_name.rpartition(":")[0]
            responder.standing.identity = self._by_address.get(host)
            return begin(dispatcher, frame, responder, peer_name, *arguments)

        monkeypatch.setattr(Dispatcher, "begin", begin_as)

    def address_of(self, subject, **fields):
        """Return the address of an identity."""
        address = f"127.0.3.{len(self._by_address) + 1}"
        self._by_address[address] = Identity(subject, **fields)
        return address
