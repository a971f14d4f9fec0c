"""Define the WSGI application that granian's workers load, with their background threads."""

import gc
import os
import resource
import signal
import socket
import threading
import time

# A worker is a fork that keeps its parent's signal handlers while it loads the application. These
# ignore SIGTERM, so that a stop during that second would need SIGKILL. Until the worker installs
# its own handlers, the signal ends it.
parent_handler = signal.getsignal(signal.SIGTERM)
for number in (signal.SIGINT, signal.SIGTERM):
    signal.signal(number, signal.SIG_DFL)
# An earlier signal has only set a flag in this process's copy of the server.
if getattr(getattr(parent_handler, "__self__", None), "interrupt_signal", False):
    raise SystemExit(0)
# Loading creates a hundred thousand objects and hardly any garbage, and collections took a quarter
# of the start. `freeze_loaded_objects` enables them again.
gc.disable()
from django.db import connection  # noqa: E402 - the lines above have to come before the loading

from broker_site.server.wsgi import application  # noqa: E402 - as above

# isort: split
# Imports that need the apps to be loaded come first.
from broker_site.server import deferred  # noqa: E402 - as above
from channels_app.garbage import freeze_loaded_objects  # noqa: E402 - as above
from channels_app.registry import authentication  # noqa: E402 - as above
from delivery.cluster import web_watch  # noqa: E402 - as above
from delivery.processes import registration  # noqa: E402 - as above
from delivery.pull.long_polling import long_polls  # noqa: E402 - as above

freeze_loaded_objects()
__all__ = ["application"]
USE_WRITE_INTERVAL_S = 1.0
SILENT_S = 60
"""Seconds without traffic after which the kernel probes whether the client's host is alive."""
read_end, write_end = socket.socketpair()


def notice_dead_processes() -> None:
    """Let the kernel close connections whose client is gone, after a minute and a half.

    A client that vanishes while it sends a body (a dead host, a cut cable) would otherwise hold a
    thread for ever. The server has no option for this, and opens its socket soon after it has
    loaded the application. Options of a listening socket apply to all connections it accepts.
    """
    while not any([_ask_on(name) for name in os.listdir("/proc/self/fd")]):
        time.sleep(0.1)


def release_on_stop(stop_socket: socket.socket) -> None:
    """End waiting receive calls when the worker is told to stop.

    The server waits for open requests, and these may take 20 seconds. It replaces any signal
    handler that is set here, but the interpreter still writes each handled signal to the wakeup
    descriptor.
    """
    while stop_socket.recv(1)[0] not in {signal.SIGINT, signal.SIGTERM}:
        pass
    long_polls.stop()


def write_uses() -> None:
    """Store when keys were last used, outside of the requests that used them."""
    while True:
        time.sleep(USE_WRITE_INTERVAL_S)
        if authentication.write_uses():
            connection.close()  # the next write is a minute away


def _ask_on(descriptor: str) -> bool:
    """Whether the descriptor is a listening socket; enables keepalive on it."""
    try:
        if not os.readlink(f"/proc/self/fd/{descriptor}").startswith("socket:"):
            return False
        own = os.dup(int(descriptor))
    except OSError:  # closed meanwhile
        return False
    with socket.socket(fileno=own) as listener:
        if not listener.getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN):
            return False
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, SILENT_S)
        listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPINTVL, 10)
        listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPCNT, 3)
    return True


# A connection is a file, and there may be more of them than the usual limit of 1,024 files.
resource.setrlimit(resource.RLIMIT_NOFILE, (resource.getrlimit(resource.RLIMIT_NOFILE)[1],) * 2)
write_end.setblocking(False)  # required by set_wakeup_fd
signal.set_wakeup_fd(write_end.fileno())
threading.Thread(target=write_uses, name="uses", daemon=True).start()
threading.Thread(target=notice_dead_processes, name="keepalive", daemon=True).start()
threading.Thread(target=release_on_stop, args=[read_end], name="release", daemon=True).start()
web_watch.begin()
registration.change_marker.start(long_polls.start())
deferred.install()
