"""Translate libcurl's errors to the outcome of an attempt and one sentence about it."""

import errno
import os
from dataclasses import dataclass

import pycurl

from delivery.core import outcome
from delivery.core.outcome import Outcome

# Error codes of libcurl for which pycurl has no name.
_E_HTTP2_STREAM = 92
_E_TOO_LARGE = 100

_OUTCOMES: dict[int, Outcome] = {
    pycurl.E_COULDNT_RESOLVE_HOST: Outcome.DNS_ERROR,
    pycurl.E_GOT_NOTHING: Outcome.CONNECTION_RESET,
    pycurl.E_PARTIAL_FILE: Outcome.CONNECTION_RESET,
    pycurl.E_SEND_ERROR: Outcome.CONNECTION_RESET,
    pycurl.E_PEER_FAILED_VERIFICATION: Outcome.TLS_ERROR,
    pycurl.E_SSL_CACERT_BADFILE: Outcome.TLS_ERROR,
    pycurl.E_SSL_CERTPROBLEM: Outcome.TLS_ERROR,
    pycurl.E_SSL_CIPHER: Outcome.TLS_ERROR,
    pycurl.E_SSL_CONNECT_ERROR: Outcome.TLS_ERROR,
    pycurl.E_SSL_INVALIDCERTSTATUS: Outcome.TLS_ERROR,
    pycurl.E_SSL_ISSUER_ERROR: Outcome.TLS_ERROR,
    pycurl.E_USE_SSL_FAILED: Outcome.TLS_ERROR,
    pycurl.E_BAD_CONTENT_ENCODING: Outcome.PROTOCOL_ERROR,
    pycurl.E_FTP_WEIRD_SERVER_REPLY: Outcome.PROTOCOL_ERROR,
    pycurl.E_HTTP2: Outcome.PROTOCOL_ERROR,
    pycurl.E_URL_MALFORMAT: Outcome.PROTOCOL_ERROR,
    _E_HTTP2_STREAM: Outcome.PROTOCOL_ERROR,
    _E_TOO_LARGE: Outcome.PROTOCOL_ERROR,
}
_CONNECT_ERRORS = {
    errno.ECONNREFUSED: Outcome.CONNECTION_REFUSED,
    errno.ECONNRESET: Outcome.CONNECTION_RESET,
    errno.ETIMEDOUT: Outcome.CONNECT_TIMEOUT,
}
LOCAL_ERRORS = frozenset(
    {errno.ENETUNREACH, errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM}
)
"""Reasons of this host, not of the consumer's, why there is no connection."""
RESOLVER = "The resolver did not answer"
SENTENCES = {
    Outcome.CONNECTION_REFUSED: "No server listens at the address",
    Outcome.CONNECTION_RESET: "The connection broke before the response headers were complete",
    Outcome.CONNECTION_ERROR: "The connection failed",
    Outcome.DNS_ERROR: "The host name could not be resolved",
    Outcome.TLS_ERROR: "The TLS connection failed",
    Outcome.PROTOCOL_ERROR: "The response is not valid HTTP",
}


@dataclass(frozen=True, slots=True)
class Failure:
    """What is known about a transfer that failed in libcurl."""

    code: int
    detail: str
    """libcurl's error text."""
    status: int | None
    """The final status, if one was received."""
    has_headers: bool
    """Whether the headers of that response are complete."""
    oversized: bool
    """Whether the sender cut the response at the limit."""
    os_errno: int
    sent: bool
    """Whether any of the request was sent."""
    blocked_ip: str
    """The address that the guard refused, if no other could be tried."""
    no_socket: str
    """Why no socket could be opened on this host, if that happened."""
    local_errno: int
    """One of `LOCAL_ERRORS` if that is why there is no connection, else 0."""
    timeout_ms: int
    connect_timeout_ms: int


def judge(failure: Failure) -> tuple[Outcome, str]:
    """Return the outcome of a transfer that did not end well, and one sentence about it.

    Complete headers are judged by their status, whatever becomes of the body: the receiver has
    decided, and after a 2xx another attempt would repeat its work. Only the time limit includes the
    body. A response cut at the size limit is judged by its status, too; a 2xx then has no sentence.
    """
    if failure.status is not None and _cut_short(failure):
        return answered(failure.status, oversized=True)
    is_late = failure.code == pycurl.E_OPERATION_TIMEDOUT
    if failure.status is not None and failure.has_headers and not is_late:
        by_status, sentence = answered(failure.status, oversized=False)
        note = f"The exchange broke off after the response headers: {_detail(failure)}."
        return by_status, f"{sentence} {note}".lstrip()
    if failure.local_errno:
        reason = os.strerror(failure.local_errno)
        return Outcome.INTERRUPTED, f"The broker's host could not connect: {reason}."
    if failure.blocked_ip:
        return Outcome.BLOCKED_ADDRESS, f"The address {failure.blocked_ip} is not allowed."
    judged = _outcome(failure)
    if judged is Outcome.BLOCKED_ADDRESS:
        return judged, "Only http:// and https:// URLs are allowed."
    if judged is Outcome.TIMEOUT:
        return judged, f"No complete response within {failure.timeout_ms} ms."
    if judged is Outcome.CONNECT_TIMEOUT:
        return judged, f"No connection within {failure.connect_timeout_ms} ms."
    return judged, f"{SENTENCES[judged]}: {_detail(failure)}."


def answered(status: int, *, oversized: bool) -> tuple[Outcome, str]:
    """Return the outcome of a response by its status, and the sentence if it is no success."""
    judged = outcome.from_status(status, oversized)
    return judged, "" if judged.is_success else f"The endpoint answered {status}."


def _cut_short(failure: Failure) -> bool:
    """Whether the body, cut by the sender, or the headers, cut by libcurl, were too long."""
    too_many_headers = failure.detail.startswith("Too large response headers")
    return failure.oversized or failure.code == _E_TOO_LARGE or too_many_headers


def _outcome(failure: Failure) -> Outcome:
    code = failure.code
    if code == pycurl.E_UNSUPPORTED_PROTOCOL:
        # libcurl reports a forbidden scheme and a response other than HTTP/1 with the same code.
        return Outcome.PROTOCOL_ERROR if failure.sent else Outcome.BLOCKED_ADDRESS
    if code == pycurl.E_COULDNT_CONNECT:
        return _CONNECT_ERRORS.get(failure.os_errno, Outcome.CONNECTION_ERROR)
    if code == pycurl.E_OPERATION_TIMEDOUT:
        return Outcome.TIMEOUT if failure.sent else Outcome.CONNECT_TIMEOUT
    if code == pycurl.E_RECV_ERROR:
        # Also the code for a malformed chunk or too many headers; then no read had failed.
        broken = failure.os_errno or "SSL_read" in failure.detail
        return Outcome.CONNECTION_RESET if broken else Outcome.PROTOCOL_ERROR
    return _OUTCOMES.get(code, Outcome.CONNECTION_ERROR)


def _detail(failure: Failure) -> str:
    if failure.code == pycurl.E_COULDNT_CONNECT and failure.os_errno:
        return os.strerror(failure.os_errno)
    return (failure.no_socket or failure.detail or f"libcurl's error {failure.code}")[:160]
