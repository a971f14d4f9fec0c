"""Define how the broker's own processes are started: the web server and the worker cluster."""

import errno
import gc
import os
import runpy
import socket
import sys
import uuid
from dataclasses import dataclass
from importlib import import_module
from importlib.util import find_spec
from typing import Any, Self

from django.conf import settings
from django.core.management import execute_from_command_line
from django.db import connections
from setproctitle import setproctitle

from channels_app.database.raw import dialect
from channels_app.garbage import freeze_loaded_objects
from delivery.cluster.web_watch import WebWatch
from delivery.conf import conf
from delivery.processes import registration
from delivery.processes.control import MAX_PAUSE_S, Child

DEFAULT_PORT = 8000
CONNECTIONS = 1024
"""Connections of each web process, besides those of waiting receivers."""
MODULES = ("delivery.cluster.qcluster",)
"""What every child but the web server needs."""
WEB_MODULES = (
    "granian.cli",
    "broker_site.urls",
    "broker_site.server.fast_path",
    "delivery.sqs.handler",
)
"""What `broker_site.server.granian` loads. That module starts threads, after the last fork."""


class Unusable(Exception):
    """The web server cannot listen on this address; the message says why and what helps."""


@dataclass(frozen=True, slots=True)
class Bind:
    """The IP address and port on which the web server listens."""

    host: str
    port: int

    @classmethod
    def parse(cls, text: str) -> Self:
        """Parse ``127.0.0.1:8000``, ``[::1]:8000``, ``localhost:8000``, or a host or port alone.

        Resolves names. Raises Unusable.
        """
        host, colon, port = text.rpartition(":")
        if not colon or text.endswith("]"):
            host, port = ("127.0.0.1", text) if text.isdecimal() else (text, str(DEFAULT_PORT))
        if not (port.isdecimal() and 1 <= int(port) <= 65535):
            raise Unusable(f"{text!r} is not host:port with a port from 1 to 65535.")
        try:
            addresses = socket.getaddrinfo(host.strip("[]"), int(port), type=socket.SOCK_STREAM)
        except OSError as error:
            raise Unusable(f"{host!r} cannot be resolved: {error.strerror}.") from None
        return cls(str(addresses[0][4][0]), int(port))

    @property
    def url(self) -> str:
        """The URL for a browser."""
        return f"http://[{self.host}]:{self.port}" if self.is_v6 else f"http://{self}"

    @property
    def is_v6(self) -> bool:
        """Whether the host is an IPv6 address."""
        return ":" in self.host

    def __str__(self) -> str:
        return f"{self.host}:{self.port}"

    def check_free(self) -> None:
        """Raise Unusable unless a server could listen here now.

        Otherwise the error would appear only in the log of a process that restarts again and again.
        Does not set SO_REUSEPORT, with which two servers could share the port unnoticed.
        """
        family = socket.AF_INET6 if self.is_v6 else socket.AF_INET
        with socket.socket(family, socket.SOCK_STREAM) as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                probe.bind((self.host, self.port))
            except OSError as error:
                if error.errno == errno.EADDRINUSE:
                    raise Unusable(
                        f"Port {self.port} on {self.host} is already in use. Stop what listens "
                        f"there, or choose another: --bind {self.host}:{self.port + 1}"
                    ) from None
                raise Unusable(f"Cannot listen on {self}: {error.strerror}.") from None


def ours(*words: str, **options: Any) -> Child:
    """Return a child that runs one of this project's commands; ``options`` are fields of Child."""
    program = str(settings.BASE_DIR / "manage.py")
    command = (sys.executable, program, *words)

    def body() -> None:
        setproctitle(" ".join(command))  # a fork has the supervisor's title
        execute_from_command_line([program, *words])

    return Child(
        name=words[0],
        command=command,
        body=body,
        **options,
    )


def web(bind: Bind) -> Child:
    """Return the HTTP server, with as many processes and threads as the settings say."""
    options = {
        "--interface": "wsgi",
        "--host": bind.host,
        "--port": str(bind.port),
        "--workers": str(web_workers()),
        "--blocking-threads": str(web_threads()),
        # Each waiting request has a connection; producers need some beyond these.
        "--backpressure": str(CONNECTIONS + long_polls()),
        # Its warnings are about the number of threads; the access log is off by default.
        "--log-level": "error",
    }
    words = (
        *(part for option in options.items() for part in option),
        # A crashed worker process is replaced while the others continue to answer.
        *("--no-ws", "--respawn-failed-workers", "broker_site.server.granian:application"),
    )
    return Child(
        name="web",
        command=(sys.executable, "-m", "granian", *words),
        body=lambda: _serve(words),
        is_alive=WebWatch(),
        longest_pause_s=_longest_pause_s(),
    )


def grpc(bind: Bind) -> Child:
    """Return the gRPC server. The web server's ``is_alive`` also watches this process.

    Raises Unusable without the packages that it needs.
    """
    if find_spec("grpc") is None or find_spec("google.protobuf") is None:
        raise Unusable("HOOKSTATION_GRPC_ADDRESS is set: install the extra hookstation[grpc].")
    return ours(
        *("grpc", "--bind", bind.url.removeprefix("http://")),
        longest_pause_s=_longest_pause_s(),
    )


def worker() -> Child:
    """Return the django-q2 cluster with its pumps.

    Restarts keep the cluster's name, so that new pumps find the slots of dead ones and release
    their deliveries at once.
    """
    name = uuid.uuid4().hex
    return ours(
        *("worker", "--cluster", name),
        is_alive=registration.Watch(name, conf().pumps),
        longest_pause_s=_longest_pause_s(),
    )


def preload(*, web: bool) -> None:
    """Load what the children need, before they fork.

    Loading takes most of a start, and each process would do it for itself.
    """
    gc.disable()  # loading creates hardly any garbage
    for name in (*MODULES, *(WEB_MODULES if web else ())):
        import_module(name)
    connections.close_all()
    freeze_loaded_objects()


def web_workers() -> int:
    """Return the number of web processes: the setting, or by database and cores.

    An embedded database has one writer, for which a second process would only wait. Otherwise half
    of the cores, since pumps and database need the others, and at least two. One process would save
    CPU, because requests share commits within a process, but producers would wait for people's
    pages.
    """
    chosen = conf().web_workers
    if chosen:
        return chosen
    if dialect.is_embedded:
        return 1
    return max(2, len(os.sched_getaffinity(0)) // 2)


def web_threads() -> int:
    """Return the threads of each web process: the setting, or up to 64 in total, at least 8 each.

    A request that waits for a commit holds a thread, and requests that wait together share the
    commit: 32 threads accept a tenth more messages than 16. Each thread may open a connection to
    the database; servers allow about 150. A single writer can use half as many threads.
    """
    return conf().web_threads or max(8, (32 if dialect.is_embedded else 64) // web_workers())


def long_polls() -> int:
    """Return how many requests may wait in each web process; each holds a connection, no thread."""
    return conf().long_polls


def _serve(words: tuple[str, ...]) -> None:
    """Do what ``python -m granian`` does with these options."""
    sys.argv = ["granian", *words]
    runpy.run_module("granian", run_name="__main__")


def _longest_pause_s() -> float:
    """Return a short pause when a failpoint kills the broker on purpose (failpoints.py)."""
    return 0.2 if conf().failpoint else MAX_PAUSE_S
