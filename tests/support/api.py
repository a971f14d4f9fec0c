"""Call the API through the same path as in production, from the WSGI environment on."""

import json
from dataclasses import dataclass
from typing import Any

from django.core.handlers.wsgi import WSGIRequest
from django.http import HttpResponse
from django.http.response import HttpResponseBase
from django.test import Client
from django.test.client import ClientHandler, conditional_content_removal

from broker_site.server.wsgi import programs
from channels_app.models import ApiKey
from tests.support import factories

BASE = "/api/v1/"


class _Lean(ClientHandler):
    """The handler of the fast path (broker_site/server/fast_path.py), as a server calls it."""

    def __call__(self, environ: dict[str, Any]) -> HttpResponse:  # type: ignore[override]  # it answers, where Django's returns nothing known
        started: list[tuple[str, list[tuple[str, str]]]] = []
        content = programs(environ, lambda *answer: started.append(answer))
        ((status, headers),) = started
        response = HttpResponse(
            b"".join(content), status=int(status.split()[0]), headers=dict(headers)
        )
        response.wsgi_request = WSGIRequest(environ)  # type: ignore[attr-defined]  # as Django's own does
        conditional_content_removal(response.wsgi_request, response)  # type: ignore[attr-defined]  # as above
        return response


class LeanClient(Client):
    """Django's test client on the fast path."""

    def __init__(self) -> None:
        super().__init__()
        self.handler = _Lean()


@dataclass(frozen=True, slots=True)
class Answer:
    """A response."""

    response: HttpResponseBase

    @property
    def status(self) -> int:
        return self.response.status_code

    @property
    def body(self) -> bytes:
        return bytes(getattr(self.response, "content", b""))

    @property
    def json(self) -> Any:
        return json.loads(self.body)

    def header(self, name: str) -> str | None:
        return self.response.headers.get(name)

    @property
    def etag(self) -> str:
        tag = self.header("ETag")
        assert tag is not None
        return tag

    @property
    def is_problem(self) -> bool:
        """Whether it is a complete RFC 9457 problem with a message for people."""
        if self.header("Content-Type") != "application/problem+json":
            return False
        problem = self.json
        return (
            problem["status"] == self.status
            and problem["type"] == f"urn:hookstation:problem:{problem['code']}"
            and bool(problem["title"])
            and " " in problem["detail"]
        )


class Api:
    """Calls the API with one key, or without any."""

    def __init__(self, key: ApiKey | None = None) -> None:
        self._client = LeanClient()
        self.raises = True
        """Whether an exception in a view is raised in the test; otherwise it is a 500, as in
        production."""
        self._headers = {"Authorization": factories.bearer(key)} if key else {}

    def call(
        self,
        method: str,
        path: str,
        body: object = None,
        *,
        content_type: str | None = None,
        **headers: str,
    ) -> Answer:
        """Send ``body`` as JSON unless it is bytes; ``If_Match="..."`` is a header."""
        data = body if isinstance(body, bytes) else b"" if body is None else _json(body)
        named = {name.replace("_", "-"): value for name, value in headers.items()}
        kind = "application/json" if content_type is None else content_type
        self._client.raise_request_exception = self.raises
        response = self._client.generic(
            method,
            path if path.startswith("/") else BASE + path,
            data,
            content_type=kind,
            headers=self._headers | named,
            CONTENT_TYPE=kind,
        )
        return Answer(response)

    def get(self, path: str, **headers: str) -> Answer:
        return self.call("GET", path, **headers)

    def put(self, path: str, body: object = None, **headers: str) -> Answer:
        return self.call("PUT", path, body, **headers)

    def patch(self, path: str, body: object = None, **headers: str) -> Answer:
        return self.call("PATCH", path, body, **headers)

    def post(self, path: str, body: object = None, **headers: str) -> Answer:
        return self.call("POST", path, body, **headers)

    def delete(self, path: str, **headers: str) -> Answer:
        return self.call("DELETE", path, **headers)


def _json(body: object) -> bytes:
    return json.dumps(body).encode()
