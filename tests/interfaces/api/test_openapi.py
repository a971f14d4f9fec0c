"""The OpenAPI document is complete and matches what the API accepts and returns."""

from typing import Any

import pytest
from django.test import Client
from drf_spectacular.generators import SchemaGenerator
from drf_spectacular.validation import validate_schema
from jsonschema import Draft202012Validator

from channels_app.registry import api_keys, channels, consumers, event_types, producers
from tests.interfaces.api import test_channels, test_consumers, test_producers
from tests.support.api import Api
from tests.support.factories import (
    ChannelFactory,
    ConsumerFactory,
    EventTypeFactory,
    ProducerFactory,
)


@pytest.fixture(scope="module")
def document() -> Any:
    """The document, generated once."""
    return SchemaGenerator().get_schema(request=None, public=True)  # type: ignore[no-untyped-call]  # it has no types


def _mine(document: Any) -> list[tuple[str, str, Any]]:
    return [
        (path, method, operation)
        for path, methods in document["paths"].items()
        for method, operation in methods.items()
    ]


def _check(document: Any, name: str, value: object) -> None:
    schema = {"$ref": f"#/components/schemas/{name}", "components": document["components"]}
    Draft202012Validator(schema).validate(value)


@pytest.mark.slow("the validator walks the whole document")
def test_it_is_valid_openapi_3_1(document: Any) -> None:
    assert document["openapi"].startswith("3.1")
    validate_schema(document)  # type: ignore[no-untyped-call]  # as above


def test_every_operation_documents_parameters_and_errors(document: Any) -> None:
    names = [operation["operationId"] for _, _, operation in _mine(document)]
    assert len(names) == len(set(names))
    for path, method, operation in _mine(document):
        where = f"{method} {path}"
        assert operation["security"] == [{"key": []}], where
        assert operation["description"], where
        answers = operation["responses"]
        assert {"401", "403", "503"} <= set(answers), where
        assert "Retry-After" in answers["503"].get("headers", {}), where
        for status, answer in answers.items():
            if int(status) >= 400:
                assert list(answer["content"]) == ["application/problem+json"], where
        if "{" in path:
            assert "404" in answers or method in {"put", "post"}, where


def test_openapi_references_resolve(document: Any) -> None:
    known = set(document["components"]["schemas"])

    def references(value: Any) -> list[str]:
        if isinstance(value, dict):
            inner = [name for part in value.values() for name in references(part)]
            return [*inner, str(value["$ref"])] if "$ref" in value else inner
        if isinstance(value, list):
            return [name for part in value for name in references(part)]
        return []

    assert {name.rpartition("/")[2] for name in references(document)} <= known


@pytest.mark.parametrize(
    ("name", "step"),
    [
        ("Channel", channels),
        ("EventType", event_types),
        ("Consumer", consumers),
        ("Producer", producers),
        ("Key", api_keys),
    ],
)
def test_every_field_is_described_and_shown(document: Any, name: str, step: Any) -> None:
    component = document["components"]["schemas"][name]["properties"]
    assert set(step.FIELDS) <= set(component)
    for field in step.FIELDS.values():
        assert field.required or field.kept or field.read(field.default) is not NotImplemented


def test_responses_match_the_schema(document: Any, admin: Api) -> None:
    consumer = ConsumerFactory.create(rate_per_second=5, retry="fast", signing=["v1a"])
    channel = consumer.channel.slug
    place = f"channels/{channel}/consumers/{consumer.client_id}"
    EventTypeFactory.create(channel=consumer.channel, name="a.b", schema={"type": "object"})
    producer = ProducerFactory.create(rate_per_second=5)
    answers = [
        ("Channel", admin.get(f"channels/{channel}")),
        ("EventType", admin.get(f"channels/{channel}/event-types/a.b")),
        ("Consumer", admin.get(place)),
        ("Producer", admin.get(f"producers/{producer.slug}")),
        ("KeyWithText", admin.post(f"producers/{producer.slug}/keys", {"all_channels": True})),
        ("Published", admin.post(f"channels/{channel}/messages", b"{}")),
        ("BatchResults", admin.post(f"channels/{channel}/messages/batch", [{"body": ""}, 5])),
        ("Problem", admin.put(f"channels/{channel}", {"paused": 1, "x": 1})),
        ("Problem", admin.get("channels/nowhere")),
        ("ConsumerWithSecret", admin.post(f"{place}/secrets")),
    ]
    for name, answer in answers:
        _check(document, name, answer.json)


# Rules beyond a schema: meaning, existence, and combinations of fields.
DEEPER = {
    *("url", "team", "headers", "schema", "example", "channels", "expires_at", "event_types"),
    "ordering_key_path",
}


@pytest.mark.parametrize(
    ("name", "bad"),
    [
        ("ChannelSettings", test_channels.BAD),
        ("ConsumerChanges", test_consumers.BAD),
        ("ProducerSettings", test_producers.BAD),
    ],
)
def test_refused_requests_violate_the_schema(
    document: Any, name: str, bad: list[tuple[str, object]]
) -> None:
    schema = {"$ref": f"#/components/schemas/{name}", "components": document["components"]}
    validator = Draft202012Validator(schema)
    fitting = [
        (field, value)
        for field, value in bad
        if field not in DEEPER and validator.is_valid({field: value})
    ]
    allowed = {
        "description",
        "max_body_bytes",
        "max_future_days",
        "content_types",
        "mode",
        "max_priority",
        "half \ud800",
    }
    assert {field for field, _ in fitting} <= allowed


def test_the_api_page_loads_only_own_files(db: None) -> None:
    client = Client()
    page = client.get("/api/docs/")
    assert page.status_code == 200
    assert "http" not in page.content.decode().replace("http-equiv", "")
    script = client.get("/api/docs/?script=")
    assert script.status_code == 200
    assert client.get("/api/schema/?format=json").json()["info"]["title"] == "Hookstation"
    ChannelFactory.create()
