"""Wait until no pump begins requests any more with the configuration before a change.

With its heartbeat each pump writes the configuration version that it has applied. A pump that does
not respond (dead, frozen or disconnected) delays this only briefly: it begins no request either
unless it has checked within the last ``FENCE_S`` seconds.
"""

import logging
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from datetime import datetime
from types import MappingProxyType
from typing import Any

from django.db import Error as DatabaseFailure

from channels_app.models import ConfigVersion
from delivery.conf import conf
from delivery.processes import registration
from delivery.processes.wakeups import wakeup_sender

logger = logging.getLogger(__name__)

FENCE_S = 1.5
"""A pump begins requests for this long after its last check of the configuration: three beats."""
FIRST_S, MAX_S = 0.002, 0.05
"""Pauses between two checks of the pumps; each is twice as long as the one before."""


class _Local(threading.local):
    skips = False
    silent: Mapping[int, datetime] = MappingProxyType({})
    """Pumps that did not confirm in time, with their last heartbeats."""


_here = _Local()


def on_delivery_changed(sender: Any, **_: Any) -> None:
    """Handle channels_app.signals.delivery_changed: wait until every pump has applied it."""
    if not _here.skips:
        wait()


@contextmanager
def unconfirmed() -> Iterator[None]:
    """Skip the wait for changes by a pump, which would wait for its own confirmation."""
    _here.skips = True
    try:
        yield
    finally:
        _here.skips = False


def wait() -> None:
    """Wait until every pump has applied what is committed, at most ``FENCE_S``. Raises nothing.

    If the database does not respond, waiting is sufficient: a pump that cannot check begins
    nothing.
    """
    end = time.monotonic() + FENCE_S
    pause = FIRST_S
    try:
        number = ConfigVersion.current()
        if not (before := _behind(number)):
            return
        if conf().wake:
            wakeup_sender.changed()
        while (behind := _behind(number)) and (remaining_s := end - time.monotonic()) > 0:
            time.sleep(min(pause, remaining_s))
            pause = min(2 * pause, MAX_S)
        # Do not wait again for a pump that is still silent: before it begins anything it must send
        # its next heartbeat and check the configuration.
        _here.silent = {key: at for key, at in behind.items() if before.get(key) == at}
    except DatabaseFailure as failure:
        logger.warning("cannot check whether all pumps have read a change: %s", failure)
        time.sleep(max(0.0, end - time.monotonic()))


def _behind(number: int) -> dict[int, datetime]:
    behind = registration.behind(number)
    return {key: at for key, at in behind.items() if _here.silent.get(key) != at}
