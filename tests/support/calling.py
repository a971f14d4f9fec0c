"""Call the API and validate every response against the OpenAPI document."""

import re
from functools import cache
from typing import Any

from django.test import Client
from drf_spectacular.generators import SchemaGenerator
from jsonschema import Draft202012Validator, FormatChecker

from channels_app.models import ApiKey
from tests.support.factories import ApiKeyFactory, bearer

BASE = "/api/v1"


class Api:
    """A caller with a key, or without."""

    def __init__(self, key: ApiKey | None = None, **values: Any) -> None:
        self.key = key if key is not None or not values else ApiKeyFactory.create(**values)
        self._client = Client()

    def get(self, path: str, **headers: str) -> Any:
        return self.call("GET", path, **headers)

    def post(self, path: str, body: Any = None, **headers: str) -> Any:
        return self.call("POST", path, body, **headers)

    def patch(self, path: str, body: Any = None, **headers: str) -> Any:
        return self.call("PATCH", path, body, **headers)

    def delete(self, path: str, **headers: str) -> Any:
        return self.call("DELETE", path, **headers)

    def call(self, method: str, path: str, body: Any = None, **headers: str) -> Any:
        """Return the response, its JSON in ``.data``; underscores in headers become hyphens."""
        extra: dict[str, Any] = {f"HTTP_{name.upper()}": value for name, value in headers.items()}
        if self.key is not None:
            extra["HTTP_AUTHORIZATION"] = bearer(self.key)
        if isinstance(body, bytes):
            answer = self._client.generic(method, BASE + path, body, "application/json", **extra)
        elif body is None:
            answer = self._client.generic(method, BASE + path, **extra)
        else:
            answer = getattr(self._client, method.lower())(
                BASE + path, body, content_type="application/json", **extra
            )
        check_documented(method, path, answer)
        return answer


def problem(answer: Any) -> tuple[int, str, str]:
    """Return status, code and field of an error."""
    assert answer.headers["Content-Type"] == "application/problem+json", answer.content
    body = answer.json()
    assert body["status"] == answer.status_code
    assert body["detail"].endswith((".", "?", "}")), body["detail"]
    return answer.status_code, body["code"], body.get("field", "")


def check_documented(method: str, path: str, answer: Any) -> None:
    """Check that status and body are documented for this operation."""
    operation = _operation(method, path.partition("?")[0])
    responses = operation["responses"]
    status = str(answer.status_code)
    assert status in responses, f"{method} {path} answers {status}, which is not documented"
    kind = answer.headers.get("Content-Type", "").partition(";")[0]
    described = responses[status].get("content", {})
    if kind in described and kind.endswith("json"):
        schema = described[kind]["schema"] | {"components": document()["components"]}
        validator = Draft202012Validator(schema, format_checker=FormatChecker())
        errors = [
            f"{error.json_path}: {error.message}" for error in validator.iter_errors(answer.json())
        ]
        assert errors == []
    else:
        assert {"*/*", kind} & described.keys() or not answer.content, f"{kind} is not documented"


@cache
def document() -> dict[str, Any]:
    """Return the OpenAPI document of the whole site."""
    return SchemaGenerator().get_schema(request=None, public=True)  # type: ignore[no-any-return, no-untyped-call]  # drf-spectacular has no types


def _operation(method: str, path: str) -> dict[str, Any]:
    for template, operations in document()["paths"].items():
        pattern = re.sub(r"\\\{\w+\\\}", "[^/]+", re.escape(template))
        if re.fullmatch(pattern, BASE + path) and method.lower() in operations:
            return operations[method.lower()]  # type: ignore[no-any-return]  # as above
    raise AssertionError(f"{method} {path} is not documented")
