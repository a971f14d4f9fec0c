"""Describe the API: components made from the serializers, and a decorator for operations."""

import json
from collections.abc import Callable, Mapping, Sequence
from http import HTTPStatus
from pathlib import Path
from typing import Any, TypeVar

from drf_spectacular.extensions import OpenApiAuthenticationExtension
from drf_spectacular.utils import OpenApiParameter, OpenApiResponse, extend_schema

from channels_app.api import options
from channels_app.serializers.base import (
    ResourceSerializer,
    ResponseSerializer,
    StrictSerializer,
)
from channels_app.serializers.fields import Slug

F = TypeVar("F", bound=Callable[..., Any])
Schema = dict[str, Any]

EXAMPLES: Mapping[str, Any] = json.loads(
    Path(__file__).with_name("examples.json").read_text(encoding="utf-8")
)
"""Requests and responses of each operation, recorded by tests/interfaces/api/test_examples.py."""
components: dict[str, Schema] = {}
"""Named schemas of the whole API; both apps add to it."""
_without_body: set[str] = set()
"""Operations whose body is optional."""

TEXT: Schema = {"type": "string"}
WHOLE: Schema = {"type": "integer"}
INSTANT: Schema = {"type": "string", "format": "date-time"}
MAYBE_TEXT: Schema = {"type": ["string", "null"]}
JSON = "application/json"
BYTES = "application/octet-stream"
REASONS = {
    400: "The request is malformed.",
    401: "The key is missing, unknown, revoked or expired.",
    403: "The key lacks the required scope or access to the channel.",
    404: "There is no such object, or it belongs to another tenant.",
    409: "The object's state does not allow this operation.",
    411: "The body came without a Content-Length, and is no JSON object or array.",
    412: "If-Match names a version that is no longer the current one.",
    413: "The body is larger than the limit.",
    415: "The content type or encoding is not accepted.",
    422: "Values are invalid; `field` and `errors` name them.",
    429: "A rate, concurrency or quota limit is exceeded; retry after Retry-After seconds.",
    503: "Storage is unavailable and nothing was stored; retry after Retry-After seconds.",
    507: "The disk is full and nothing was stored; retry after Retry-After seconds.",
}
ETAG = OpenApiParameter(
    "ETag", str, OpenApiParameter.HEADER, description="Its version.", response=[200, 201, 304]
)
LOCATION = OpenApiParameter(
    "Location", str, OpenApiParameter.HEADER, description="Its URL.", response=[201]
)
RETRY_AFTER = {"Retry-After": {"schema": {"type": "integer"}, "description": "Seconds to wait."}}
CHANNEL, CLIENT_ID, PRODUCER, TEAM = (
    OpenApiParameter(name, Slug().json_schema(), OpenApiParameter.PATH)
    for name in ("channel", "client_id", "producer", "team")
)


class KeyScheme(OpenApiAuthenticationExtension):  # type: ignore[no-untyped-call]  # registers itself
    """The authentication scheme: an API key."""

    target_class = "channels_app.api.authentication.KeyAuthentication"
    name = "key"

    def get_security_definition(self, auto_schema: Any) -> Schema:
        """An API key as a bearer token."""
        return {"type": "http", "scheme": "bearer", "bearerFormat": "hsk_<id>_<secret>"}


def component(name: str, schema: Mapping[str, Any]) -> Schema:
    """Register a named schema; return a reference to it."""
    components[name] = dict(schema)
    return _reference(name)


def record(**properties: Mapping[str, Any]) -> Schema:
    """The schema of an object in a response, whose properties are all required."""
    return {"type": "object", "properties": dict(properties), "required": list(properties)}


def described(serializer: type[ResourceSerializer]) -> tuple[Schema, Schema, Schema]:
    """Register a resource's schemas: its settings, changes of some of them, and what is shown."""
    instance, name = serializer(), serializer.title
    return (
        component(f"{name}Settings", instance.written_schema()),
        component(f"{name}Changes", instance.written_schema(partial=True)),
        component(name, instance.shown_schema()),
    )


def shown(serializer: type[ResponseSerializer]) -> Schema:
    """Register the schema of what a serializer shows; return a reference."""
    return component(serializer.title, serializer().shown_schema(shown=True))


def taken(serializer: StrictSerializer) -> Schema:
    """Register the schema of what a serializer takes; return a reference."""
    return component(serializer.title, serializer.written_schema())


def page_of(item: Schema) -> Schema:
    """The schema of a page of a list of a named schema."""
    cursor = {"type": ["string", "null"]}
    page = record(
        items={"type": "array", "items": item},
        next=cursor | {"description": "Cursor of the older page; null on the last page."},
        previous=cursor | {"description": "Cursor of the newer page; null on the first page."},
    )
    return component(f"{item['$ref'].rpartition('/')[2]}Page", page)


def header(name: str, description: str, schema: Mapping[str, Any] = TEXT) -> OpenApiParameter:
    """An optional request header."""
    return OpenApiParameter(name, dict(schema), OpenApiParameter.HEADER, description=description)


IF_MATCH = header(
    "If-Match",
    "Change it only if the version is still this ETag (or one of a list); otherwise 412.",
    {"type": "string", "pattern": r'^(\*|"\d+"(, *"\d+")*)$'},
)
IF_NONE_MATCH = header(
    "If-None-Match",
    "Create only: 412 if it exists already.",
    {"title": "Anything", "type": "string", "enum": ["*"]},
)
WRITING = (IF_MATCH, ETAG)
CREATING = (IF_MATCH, IF_NONE_MATCH, ETAG, LOCATION)
READING = (header("If-None-Match", "Respond with 304 if the version is still this ETag."), ETAG)


def query(name: str, description: str, schema: Mapping[str, Any] = TEXT) -> OpenApiParameter:
    """A query parameter of a list."""
    return OpenApiParameter(name, dict(schema), OpenApiParameter.QUERY, description=description)


LIST = (
    query("limit", "Maximum items per page.", {"type": "integer", "minimum": 1, "maximum": 200}),
    query("cursor", "`next` or `previous` of another page; keeps its filters."),
)


def queries(serializer: type[StrictSerializer]) -> list[OpenApiParameter]:
    """The query parameters that a serializer takes."""
    fields: Mapping[str, Any] = serializer().fields
    return [
        query(name, field.help_text or "", field.schema_of_value(False))
        for name, field in fields.items()
    ]


def complete(result: Schema, generator: Any, request: Any, public: bool) -> Schema:
    """Hook of drf-spectacular: add the named schemas, and what all operations have in common."""
    schemas: Schema = {}
    schemas |= {name: _named(schema, schemas) for name, schema in components.items()}
    result["paths"] = _named(result["paths"], schemas)
    result.setdefault("components", {})["schemas"] = dict(sorted(schemas.items()))
    for methods in result["paths"].values():
        for described in methods.values():
            if "requestBody" in described and described["operationId"] not in _without_body:
                described["requestBody"]["required"] = True
            _exemplify(described)
            for status in {"429", "503", "507"} & set(described["responses"]):
                answer = described["responses"][status]
                answer["headers"] = answer.get("headers", {}) | RETRY_AFTER
    return result


def _reference(name: str) -> Schema:
    return {"$ref": f"#/components/schemas/{name}"}


PROBLEM = component(
    "Problem",
    {
        "type": "object",
        "description": "An error, as RFC 9457 problem details.",
        "properties": {
            "type": {"type": "string", "format": "uri"},
            "title": TEXT,
            "status": {"type": "integer", "minimum": 400, "maximum": 599},
            "code": {"type": "string", "description": "Stable error code, for programs."},
            "detail": {"type": "string", "description": "What is wrong, and what to do."},
            "field": {"type": "string", "description": "The offending field or header."},
            "errors": {
                "type": "array",
                "items": component("FieldProblem", record(field=TEXT, detail=TEXT)),
                "description": "All offending fields, if there are several.",
            },
        },
        "required": ["type", "title", "status", "code", "detail"],
        "examples": EXAMPLES["problems"],
    },
)


def operation(
    name: str,
    summary: str,
    *,
    tag: str,
    answers: Mapping[int, Schema | None],
    errors: Sequence[int] = (),
    body: Mapping[str, Schema] | None = None,
    optional: bool = False,
    parameters: Sequence[OpenApiParameter] = (),
    content: Sequence[str] = (JSON,),
) -> Callable[[F], F]:
    """Describe an operation: its bodies (by content type), its responses and its errors.

    ``name`` is its operationId, a verb and a noun in camel case, from which code generators derive
    the method's name. ``content`` lists the content types of its responses.
    """
    if optional:
        _without_body.add(name)
    responses: dict[Any, Any] = {}
    for status, schema in answers.items():
        described = OpenApiResponse(schema, description=HTTPStatus(status).phrase)
        responses[(status, *content) if schema else status] = described
    # An operation that reads a body may refuse to (read_body).
    unread = {429} if 411 in errors else set()
    # Unknown parameters are rejected (options.py).
    for status in sorted({401, 403, 422, 503, *unread, *errors}):
        described = OpenApiResponse(PROBLEM, description=REASONS[status])
        responses[status, "application/problem+json"] = described
    describe = extend_schema(
        operation_id=name,
        summary=summary,
        tags=[tag],
        request=dict(body) if body else None,
        responses=responses,
        parameters=list(parameters),
    )

    def decorate(handler: F) -> F:
        described: F = describe(handler)
        options.declare(
            described,
            (
                parameter.name
                for parameter in parameters
                if parameter.location == OpenApiParameter.QUERY
            ),
            (
                parameter.name
                for parameter in parameters
                if parameter.location == OpenApiParameter.HEADER
            ),
        )
        return described

    return decorate


def _named(value: Any, schemas: Schema) -> Any:
    """Replace each schema that has a title by a reference.

    The schema moves into ``schemas``. Code generators name a class after it; without a name they
    derive one from the path to it, a different one at each place.
    """
    if isinstance(value, list):
        return [_named(inner, schemas) for inner in value]
    if not isinstance(value, dict):
        return value
    copy = {name: _named(inner, schemas) for name, inner in value.items()}
    # Examples may have both members, too, as a problem document does.
    if copy.get("type") in ("object", "string") and isinstance(copy.get("title"), str):
        name = copy.pop("title")
        schemas[name] = copy
        return _reference(name)
    return copy


def _exemplify(described: Schema) -> None:
    """Add the recorded examples to an operation."""
    recorded = EXAMPLES["operations"].get(described["operationId"], {})
    for parameter in described.get("parameters", []):
        if parameter["name"] in EXAMPLES["parameters"]:
            parameter["example"] = EXAMPLES["parameters"][parameter["name"]]
    content = described.get("requestBody", {}).get("content", {})
    if JSON in content and "request" in recorded:
        content[JSON]["example"] = recorded["request"]
    for status, answer in recorded.get("responses", {}).items():
        content = described["responses"].get(status, {}).get("content", {})
        if JSON in content:
            content[JSON]["example"] = answer
