"""The fast path of API requests gives the same responses as the full middleware stack."""

import gc
import http.client
import io
import re
import threading
from collections.abc import Iterator
from datetime import timedelta
from functools import partial
from typing import Any
from wsgiref.simple_server import WSGIRequestHandler, make_server
from wsgiref.util import setup_testing_defaults
from wsgiref.validate import validator

import pytest
from django.contrib.sessions.models import Session
from django.core.signals import request_finished, request_started
from django.db import close_old_connections, connection
from django.http import HttpRequest
from rest_framework.request import Request

from broker_site.server import wsgi
from channels_app.core import times
from channels_app.core.errors import BrokerError
from channels_app.database import clock
from channels_app.models import Message
from tests.support.factories import ApiKeyFactory, ChannelFactory, ConsumerFactory, bearer

MESSAGES = "/api/v1/channels/orders/messages"
CONSUMERS = "/api/v1/channels/orders/consumers"
RECEIVE, ACK = f"{CONSUMERS}/pulling/receive", "/api/v1/leases/ack"
BODIES = {RECEIVE: b'{"max": 1}', ACK: b'{"leases": ["lse_none"]}'}
REQUESTS = {
    "no key": (401, "POST", MESSAGES, False),
    "unknown channel": (404, "POST", "/api/v1/channels/nothing/messages", True),
    "receive": (200, "POST", RECEIVE, True),
    "receive without a key": (401, "POST", RECEIVE, False),
    "receive what is sent": (409, "POST", f"{CONSUMERS}/pushed/receive", True),
    "unknown consumer": (404, "POST", f"{CONSUMERS}/nobody/receive", True),
    "acknowledge": (200, "POST", ACK, True),
    "acknowledge without a key": (401, "POST", ACK, False),
    "receive by GET": (405, "GET", RECEIVE, True),
    "no such address": (404, "GET", "/api/v1/nothing", True),
    "wrong method": (405, "DELETE", "/api/v1/channels", True),
    "a list": (200, "GET", "/api/v1/channels", True),
    "head": (200, "HEAD", "/api/v1/channels", True),
    "trailing slash": (404, "POST", f"{MESSAGES}/", True),
    "odd path": (404, "GET", "/api/v1/messages/\x00\xff", True),
    "alive": (200, "GET", "/livez", False),
    "not ready": (503, "GET", "/readyz", False),
    # Last, because the message would be received.
    "publish": (202, "POST", MESSAGES, True),
}
CHANGING = re.compile(rb"msg_\w{13}|\d{4}-\d\d-\d\dT[\d:.]+Z|\d+\.\d s old|\d+ MiB in")


@pytest.fixture(autouse=True)
def _kept_connection() -> Iterator[None]:
    """Keep the connection with the test's transaction open at the end of a request."""
    signals = (request_started, request_finished)
    for signal in signals:
        signal.disconnect(close_old_connections)
    yield
    for signal in signals:
        signal.connect(close_old_connections)


@pytest.fixture
def authorization() -> str:
    """A key with every permission, and a channel to use it on."""
    orders = ChannelFactory.create(slug="orders")
    ConsumerFactory.create(channel=orders, client_id="pulling", pull=True)
    ConsumerFactory.create(channel=orders, client_id="pushed")
    return bearer(ApiKeyFactory.create(admin=True))


def call(
    handler: Any, method: str, path: str, body: bytes, authorization: str = "", **more: str
) -> tuple[str, dict[str, str], bytes]:
    """Send one request directly to a WSGI handler; return status, headers and body."""
    environ: dict[str, Any] = {
        "REQUEST_METHOD": method,
        "PATH_INFO": path,
        "CONTENT_LENGTH": str(len(body)),
        "CONTENT_TYPE": "application/json",
        "wsgi.input": io.BytesIO(body),
        **({"HTTP_AUTHORIZATION": authorization} if authorization else {}),
        **more,
    }
    setup_testing_defaults(environ)
    started: list[tuple[str, dict[str, str]]] = []
    answer = handler(environ, lambda status, headers: started.append((status, dict(headers))))
    content = b"".join(answer)
    getattr(answer, "close", bool)()
    return (*started[0], content)


@pytest.mark.django_db
@pytest.mark.seed("S4-31")
def test_fast_path_and_django_give_the_same_response(authorization: str) -> None:
    for name, (status, method, path, has_key) in REQUESTS.items():
        key, body = authorization if has_key else "", BODIES.get(path, b'{"id": 1}')

        short = call(wsgi.programs, method, path, body, key)
        long = call(wsgi.people, method, path, body, key)

        assert short[0] == long[0], name
        assert short[0].startswith(f"{status} "), name
        assert CHANGING.sub(b"?", short[2]) == CHANGING.sub(b"?", long[2]), name
        for headers in (short[1], long[1]):
            headers.pop("Location", None)
            headers.pop("Expires", None)
            told = headers.pop("Hookstation-Now", None)
            # API clients get the server's time even when a request is refused.
            assert told or name not in ("publish", "no key", "unknown channel", "a list"), name
            assert told is None or abs(times.instant(told) - clock.now()) < timedelta(minutes=1)
        assert short[1] == long[1], name
        assert short[1]["Content-Security-Policy"].startswith("default-src 'none'"), name
        assert short[1]["X-Content-Type-Options"] == "nosniff", name
        assert int(short[1]["Content-Length"]) == len(short[2]) or method == "HEAD", name


@pytest.mark.django_db
def test_a_request_goes_through_the_door_it_is_meant_for(
    authorization: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    taken: list[str] = []
    doors = [it._replace(application=partial(_take, taken, it.name)) for it in wsgi.DOORS]
    monkeypatch.setattr(wsgi, "DOORS", doors)

    for path in (MESSAGES, "/livez", "/readyz", "/metrics"):
        wsgi.application({"PATH_INFO": path, "REQUEST_METHOD": "GET"}, lambda *_: None)
    for path in ("/admin/", "/", "/api/docs/", "/api/schema/", "/static/x.css", "/portal/"):
        wsgi.application({"PATH_INFO": path, "REQUEST_METHOD": "GET"}, lambda *_: None)
    for path in ("/", "/000000000000/orders"):
        wsgi.application({"PATH_INFO": path, "REQUEST_METHOD": "POST"}, lambda *_: None)

    assert taken == ["programs"] * 4 + ["people"] * 6 + ["sqs"] * 2


def _take(taken: list[str], name: str, environ: Any, start_response: Any) -> list[bytes]:
    taken.append(name)
    return []


@pytest.mark.django_db
def test_publishing_reads_no_session(authorization: str) -> None:
    seen: list[str] = []

    def note(execute: Any, sql: str, *args: Any) -> Any:
        seen.append(sql)
        return execute(sql, *args)

    with connection.execute_wrapper(note):
        status, _, _ = call(wsgi.application, "POST", MESSAGES, b"{}", authorization)

    assert status == "202 Accepted"
    assert not [sql for sql in seen if Session._meta.db_table in sql or "auth_user" in sql]


@pytest.mark.slow("collects garbage")
@pytest.mark.django_db
def test_a_finished_request_and_its_body_are_freed(authorization: str) -> None:
    def publish(number: int, key: str) -> str:
        body, more = b'{"id": %d}' % number, {"HTTP_IDEMPOTENCY_KEY": key}
        return call(wsgi.application, "POST", MESSAGES, body, authorization, **more)[0]

    publish(1, "again")
    publish(2, "again")
    gc.collect()
    gc.disable()
    try:
        # Each page of the console keeps a reference to the last request that it answered.
        before = requests_alive()
        assert publish(3, "new").startswith("202")
        # Refused after its body was read, because the key has another body.
        assert publish(4, "again").startswith("409")
        left = [one for one in requests_alive() if not any(one is known for known in before)]
    finally:
        gc.enable()
    assert left == []


def requests_alive() -> list[object]:
    """Return the requests and API errors that are still referenced."""
    return [one for one in gc.get_objects() if isinstance(one, HttpRequest | Request | BrokerError)]


class _Quiet(WSGIRequestHandler):
    def log_message(self, *args: Any) -> None:
        """Log nothing."""


@pytest.fixture
def port() -> Iterator[int]:
    """A real server that also validates WSGI compliance."""
    with make_server("127.0.0.1", 0, validator(wsgi.application), handler_class=_Quiet) as server:
        thread = threading.Thread(target=server.serve_forever, daemon=True)
        thread.start()
        yield server.server_port
        server.shutdown()
        thread.join()


@pytest.mark.django_db(transaction=True)
def test_a_real_server_publishes_and_serves_sign_in(port: int, authorization: str) -> None:
    client = http.client.HTTPConnection("127.0.0.1", port, timeout=60)
    headers = {"Authorization": authorization, "Content-Type": "application/json"}

    client.request("POST", MESSAGES, b'{"id": 1}', headers)
    published = client.getresponse()
    published.read()
    client.request("GET", "/accounts/login/")
    login = client.getresponse()
    page = login.read()

    assert published.status == 202
    assert Message.objects.count() == 1
    assert login.status == 200
    assert b"Hookstation" in page
    client.close()
