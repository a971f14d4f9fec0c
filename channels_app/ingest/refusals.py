"""Turn what the database and Django raise into the errors that every door translates."""

import logging
import threading
import time

from django.core.exceptions import RequestDataTooBig, SuspiciousOperation
from django.db import Error as DatabaseFailure
from django.db import InterfaceError, OperationalError
from django.http import Http404
from django.http.request import UnreadablePostError

from channels_app.core.errors import (
    BrokerError,
    Malformed,
    NotFound,
    StorageFull,
    TooLarge,
    Unavailable,
)
from channels_app.database.raw import dialect
from channels_app.ingest import storage

LINE_S = 1.0
"""Minimum seconds between two log lines about unavailable storage."""
log = logging.getLogger(__name__)


def of(error: Exception) -> BrokerError | None:
    """The refusal that callers see; None for a bug, and for an error of REST framework's own."""
    if isinstance(error, BrokerError):
        return error
    if isinstance(error, DatabaseFailure) and dialect.is_full(error):
        _outage.tell(error)
        return StorageFull("storage_full", storage.FULL)
    if isinstance(error, OperationalError | InterfaceError):
        _outage.tell(error)
        detail = "Nothing was stored: the database is unavailable. Send the request again."
        return Unavailable("storage_unavailable", detail)
    if isinstance(error, RequestDataTooBig):
        return TooLarge("body_too_large", "The request is too large.")
    if isinstance(error, SuspiciousOperation):
        # Django's response would be the same, but with a traceback in the log each time.
        return Malformed("bad_request", "The request cannot be read.")
    if isinstance(error, UnreadablePostError):
        return Malformed("broken_request", "The request ended before its body did.")
    if isinstance(error, Http404):
        return NotFound("not_found", "There is nothing at this address.")
    return None


class _Outage:
    """Logs how many requests were refused: thousands of lines per second would fill the disk."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._logged_at = float("-inf")
        self._suppressed = 0

    def tell(self, error: Exception) -> None:
        """Count a request that could not be served."""
        with self._lock:
            self._suppressed += 1
            if time.monotonic() - self._logged_at < LINE_S:
                return
            count, self._suppressed, self._logged_at = self._suppressed, 0, time.monotonic()
        log.warning("storage is unavailable (requests refused: %d): %s", count, error)


_outage = _Outage()
