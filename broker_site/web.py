"""The WSGI application as the workers of granian load it."""

import gc
import os
import resource
import signal
import socket
import sys
import threading
import time

# A worker is a fork that keeps its parent's handlers until the application is loaded, and those
# swallow SIGTERM: a stop during the second that loading takes would wait until SIGKILL. Until the
# worker installs its own, a stop shall simply end it.
parent_handler = signal.getsignal(signal.SIGTERM)
for number in (signal.SIGINT, signal.SIGTERM):
    signal.signal(number, signal.SIG_DFL)
# One that came before has only left a mark on the server's copy in this process.
if getattr(getattr(parent_handler, "__self__", None), "interrupt_signal", False):
    raise SystemExit(0)
# Loading makes a hundred thousand objects and hardly any garbage: looking for it took a quarter of
# the start. `freeze_loaded_objects` turns it on again.
gc.disable()

from django.db import connection  # noqa: E402 - the lines above have to come before the loading

from broker_site.wsgi import application  # noqa: E402 - as above

# isort: split
# What loads the apps comes first.
from broker_site import deferred  # noqa: E402 - as above
from channels_app.api import authentication  # noqa: E402 - as above
from channels_app.garbage import freeze_loaded_objects  # noqa: E402 - as above
from delivery.runtime import registration, web_watch  # noqa: E402 - as above
from delivery.runtime.long_polling import long_polls  # noqa: E402 - as above

freeze_loaded_objects()

__all__ = ["application"]

USE_WRITE_INTERVAL_S = 1.0
SWITCH_S = 0.0005
"""A thread that stores a large batch lets others go on after so long, not after Python's 5 ms: a
single message beside it waits at each of its steps, of which accepting it takes a dozen."""
SILENT_S = 60
"""After so long without a word the kernel asks a caller's host whether it is still there."""


def notice_dead_processes() -> None:
    """Have the kernel end connections whose other side is gone, a minute and a half after.

    A caller that vanishes in the middle of a body (a dead host, a cut line) would else hold a
    thread for ever. The server has no option for it, and opens its socket itself, soon after it
    has loaded the application; what is set on a socket that listens holds for all it accepts.
    """
    while not any([_ask_on(name) for name in os.listdir("/proc/self/fd")]):
        time.sleep(0.1)


def _ask_on(descriptor: str) -> bool:
    """Whether the descriptor is a socket that listens, which then has its connections asked."""
    try:
        if not os.readlink(f"/proc/self/fd/{descriptor}").startswith("socket:"):
            return False
        own = os.dup(int(descriptor))
    except OSError:  # closed by its owner meanwhile
        return False
    with socket.socket(fileno=own) as one:
        if not one.getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN):
            return False
        one.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        one.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, SILENT_S)
        one.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPINTVL, 10)
        one.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPCNT, 3)
    return True


def release_on_stop(stop_socket: socket.socket) -> None:
    """End the calls that wait for messages when the worker is told to stop.

    The server waits for open requests, and those may be open for 20 seconds. Its own handler of
    the signal takes the place of any that is set here; what the interpreter writes down of each
    signal that has a handler does not change with it.
    """
    while stop_socket.recv(1)[0] not in {signal.SIGINT, signal.SIGTERM}:
        pass
    long_polls.stop()


def write_uses() -> None:
    """Note when keys were last used, behind the requests that they came with."""
    while True:
        time.sleep(USE_WRITE_INTERVAL_S)
        if authentication.write_uses():
            connection.close()  # the next one comes in a minute


# A connection is a file, and there are more of them than the 1,024 files that are usual.
resource.setrlimit(resource.RLIMIT_NOFILE, (resource.getrlimit(resource.RLIMIT_NOFILE)[1],) * 2)
read_end, write_end = socket.socketpair()
write_end.setblocking(False)  # as the interpreter demands
signal.set_wakeup_fd(write_end.fileno())
sys.setswitchinterval(SWITCH_S)
threading.Thread(target=write_uses, name="uses", daemon=True).start()
threading.Thread(target=notice_dead_processes, name="keepalive", daemon=True).start()
threading.Thread(target=release_on_stop, args=[read_end], name="release", daemon=True).start()
web_watch.begin()
registration.change_marker.start(long_polls.start())
deferred.install()
