"""Messages about TLS connections that fail, for the log of a server and for clients."""

from __future__ import annotations

import ssl
from typing import Final

from sbp_core.errors import TlsError

_SPEAK_PLAIN: Final = (
    "connect without TLS (leave out ca_file, --tls-ca or tlsCaFile), or set cert_file and key_file"
    " in [tls] of the server"
)
_NAME_AUTHORITY: Final = (
    "name the file of the authority that signed it as ca_file of Tls, --tls-ca or tlsCaFile; of a"
    " server, as ca_file in [tls]"
)
_CAUSES_BY_CODE: Final = {
    9: ("its certificate is not valid yet", "compare the clocks"),
    10: (
        "its certificate has expired",
        "give the server a new one: it reads its files again when they change",
    ),
    18: ("its certificate is signed by itself alone", _NAME_AUTHORITY),
    19: ("its certificate is of an unknown authority", _NAME_AUTHORITY),
    20: ("its certificate is of an unknown authority", _NAME_AUTHORITY),
    21: ("its certificate is of an unknown authority", _NAME_AUTHORITY),
}
"""By verify code of OpenSSL (X509_V_ERR_*): what is wrong with a server's certificate, remedy."""
_WRONG_NAME: Final = (62, 64)
_OWN: Final = "cert_file of Tls, --tls-cert or tlsCertFile; of a server, cert_file in [tls]"
_CAUSES_BY_ALERT: Final = {
    "CERTIFICATE_REQUIRED": (
        "it wants a certificate of the client",
        f"set {_OWN}, and the key with it",
    ),
    "UNKNOWN_CA": (
        "it does not know the authority of our certificate",
        f"use a certificate of an authority in client_ca_file or ca_file of the server: {_OWN}",
    ),
    "CERTIFICATE_EXPIRED": ("our certificate has expired", f"renew it: {_OWN}"),
    "CERTIFICATE": ("it does not accept our certificate", f"use another one: {_OWN}"),
    "PROTOCOL_VERSION": ("it does not speak TLS 1.3", "connect to a server that does"),
}
"""By a part of the alert's name: why a server refuses the client, and the remedy."""


class PlainTextError(Exception):
    """The peer sent something else than TLS."""


def reason_of(error: ssl.SSLError) -> str:
    """Return the reason that OpenSSL gives, in words."""
    return (error.reason or str(error)).replace("_", " ").lower()


def refusal(failure: Exception) -> str:
    """Return why a server closes a connection, for its log."""
    if isinstance(failure, PlainTextError):
        return "the peer does not speak TLS, and this port nothing else"
    if isinstance(failure, ssl.SSLCertVerificationError):
        return f"the certificate of the peer is refused: {failure.verify_message}"
    if isinstance(failure, ssl.SSLError):
        return f"TLS failed: {reason_of(failure)}"
    return f"TLS failed: {failure}"


def tls_error(endpoint: str, host: str, failure: Exception) -> TlsError:
    """Return the error of a client whose connection is not a trusted one."""
    cause, remedy = f"the TLS handshake failed: {failure}", "see the log of the server"
    if isinstance(failure, PlainTextError):
        cause, remedy = "it does not speak TLS on this port", _SPEAK_PLAIN
    elif isinstance(failure, ssl.SSLCertVerificationError):
        code = failure.verify_code
        cause = f"its certificate is not valid: {failure.verify_message}"
        remedy = "give the server another one"
        if code in _WRONG_NAME:
            cause = f"its certificate is not for {host}"
            remedy = (
                "connect to a name in it, let the server advertise one (advertise_host), or add"
                f" {host} to its subjectAltName"
            )
        cause, remedy = _CAUSES_BY_CODE.get(code, (cause, remedy))
    elif isinstance(failure, ssl.SSLError):
        for part, known in _CAUSES_BY_ALERT.items():
            if "ALERT" in (failure.reason or "") and part in (failure.reason or ""):
                cause, remedy = known
                break
        else:
            cause = f"the TLS handshake failed: {reason_of(failure)}"
    return TlsError(f"no trusted connection to {endpoint}: {cause}; {remedy}")
