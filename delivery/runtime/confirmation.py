"""Confirmation: a change is answered when no pump begins a request any more by what was before it.

Each pump writes beside its heartbeat up to which number it follows the configuration. A pump that
cannot be heard (dead, frozen, cut off) holds up nobody for long: it begins nothing either, unless
it has looked within the last ``FENCE_S`` seconds.
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

from channels_app.models import DirectoryVersion
from delivery.conf import conf
from delivery.runtime import registration
from delivery.runtime.wakeups import wakeup_sender

logger = logging.getLogger(__name__)

FENCE_S = 1.5
"""A pump begins requests for so long after its last look at the configuration: three beats."""
FIRST_S, MAX_S = 0.002, 0.05
"""Between two looks at who follows; each is twice as long as the one before."""


class _Local(threading.local):
    skips = False
    silent: Mapping[int, datetime] = MappingProxyType({})
    """Pumps that were waited for in vain, with the last beat that they had shown."""


_here = _Local()


def on_delivery_changed(sender: Any, **_: Any) -> None:
    """Receiver of channels_app.signals.delivery_changed: returns when every pump follows."""
    if not _here.skips:
        wait()


@contextmanager
def unconfirmed() -> Iterator[None]:
    """For changes that a pump makes itself: it would wait for its own confirmation."""
    _here.skips = True
    try:
        yield
    finally:
        _here.skips = False


def _behind(number: int) -> dict[int, datetime]:
    found = registration.behind(number)
    return {key: at for key, at in found.items() if _here.silent.get(key) != at}


def wait() -> None:
    """Until every pump follows what is committed, ``FENCE_S`` at most. Raises nothing.

    Where the database does not answer, time does: a pump that has not looked since begins nothing.
    """
    end = time.monotonic() + FENCE_S
    pause = FIRST_S
    try:
        number = DirectoryVersion.current()
        if not (known := _behind(number)):
            return
        if conf().wake:
            wakeup_sender.changed()
        while (behind := _behind(number)) and (left := end - time.monotonic()) > 0:
            time.sleep(min(pause, left))
            pause = min(2 * pause, MAX_S)
        # Nobody waits for the same silence twice: it begins nothing before its next beat, and looks
        # at the configuration then.
        _here.silent = {key: at for key, at in behind.items() if known.get(key) == at}
    except DatabaseFailure as failure:
        logger.warning("nobody can say which pumps follow a change: %s", failure)
        time.sleep(max(0.0, end - time.monotonic()))
