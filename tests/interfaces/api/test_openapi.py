"""The OpenAPI document is complete and matches what the API accepts and returns."""

import json
import re
from pathlib import Path
from typing import Any

import jsonschema_rs
from django.test import Client
from drf_spectacular import validation
from jsonschema import Draft202012Validator, FormatChecker

from channels_app.api import openapi
from channels_app.serializers.api_keys import KeySerializer
from channels_app.serializers.channels import ChannelSerializer
from channels_app.serializers.consumers import ConsumerSerializer
from channels_app.serializers.event_types import EventTypeSerializer
from channels_app.serializers.producers import ProducerSerializer
from tests.support.api import Api
from tests.support.calling import document
from tests.support.factories import ConsumerFactory


def operations() -> list[tuple[str, str, Any]]:
    return [
        (path, method, operation)
        for path, methods in document()["paths"].items()
        for method, operation in methods.items()
    ]


def test_it_is_valid_openapi_3_1() -> None:
    assert document()["openapi"].startswith("3.1")
    rules = Path(validation.__file__).with_name("openapi_3_1_schema.json").read_text()
    plain = json.loads(json.dumps(document(), default=str))
    jsonschema_rs.validator_for(json.loads(rules)).validate(plain)


def test_every_operation_documents_parameters_and_errors() -> None:
    names = [operation["operationId"] for _, _, operation in operations()]
    assert len(names) == len(set(names))
    for path, method, operation in operations():
        where = f"{method} {path}"
        assert re.fullmatch("[a-z]+[A-Z][A-Za-z]+", operation["operationId"]), where
        assert re.fullmatch(r"[A-Z][^.\n]{5,59}[^.\n]", operation["summary"]), where
        assert len(operation["tags"]) == 1, where
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


def test_openapi_references_resolve() -> None:
    known = set(document()["components"]["schemas"])

    def references(value: Any) -> list[str]:
        if isinstance(value, dict):
            inner = [name for part in value.values() for name in references(part)]
            return [*inner, str(value["$ref"])] if "$ref" in value else inner
        if isinstance(value, list):
            return [name for part in value for name in references(part)]
        return []

    assert {name.rpartition("/")[2] for name in references(document())} <= known


def test_every_operation_has_examples_that_fit() -> None:
    """tests/interfaces/api/test_examples.py checks that they are real responses."""
    for path, method, operation in operations():
        where = f"{method} {path}"
        for parameter in operation.get("parameters", []):
            if parameter["in"] == "path":
                assert fits(parameter["schema"], parameter["example"]) == [], where
        shown = [operation["requestBody"]] if "requestBody" in operation else []
        shown += [it for status, it in operation["responses"].items() if status < "300"]
        for content in (one.get("content", {}) for one in shown):
            if openapi.JSON in content:
                schema, example = content[openapi.JSON]["schema"], content[openapi.JSON]["example"]
                assert fits(schema, example) == [], where
                assert undocumented(schema, example) == [], where


def test_problems_have_examples_that_fit() -> None:
    problem = document()["components"]["schemas"]["Problem"]
    assert problem["examples"]
    for example in problem["examples"]:
        assert fits(problem, example) == []
        assert undocumented(problem, example) == []


def fits(schema: dict[str, Any], value: object) -> list[str]:
    """Return the parts of a value that the schema does not allow."""
    validator = Draft202012Validator(
        schema | {"components": document()["components"]}, format_checker=FormatChecker()
    )
    return [f"{error.json_path}: {error.message}" for error in validator.iter_errors(value)]


def undocumented(schema: dict[str, Any], value: object, at: str = "$") -> list[str]:
    """Return members of a response that its schema allows without naming them."""
    if "$ref" in schema:
        name = schema["$ref"].rpartition("/")[2]
        return undocumented(document()["components"]["schemas"][name], value, at)
    for choice in (*schema.get("oneOf", ()), *schema.get("anyOf", ())):
        # A choice may also be a mere condition on other members.
        if ("type" in choice or "$ref" in choice) and fits(choice, value) == []:
            return undocumented(choice, value, at)
    if isinstance(value, list):
        inner = [(schema.get("items", {}), one, f"{at}[{i}]") for i, one in enumerate(value)]
    elif isinstance(value, dict) and "properties" in schema:
        known = schema["properties"]
        inner = [(known.get(name), one, f"{at}.{name}") for name, one in value.items()]
    else:
        return []
    strange = [place for part, _, place in inner if part is None]
    deeper = [undocumented(*part) for part in inner if part[0] is not None]
    return strange + [place for found in deeper for place in found]


def test_every_field_is_described_and_shown() -> None:
    for name, settings in (
        ("Channel", ChannelSerializer.settings()),
        ("EventType", EventTypeSerializer.settings()),
        ("Consumer", ConsumerSerializer.settings()),
        ("Producer", ProducerSerializer.settings()),
        ("Key", KeySerializer.settings()),
    ):
        assert set(settings) <= set(document()["components"]["schemas"][name]["properties"]), name


def test_a_consumer_with_optional_settings_matches_its_schema(admin: Api) -> None:
    consumer = ConsumerFactory.create(rate_per_second=5, retry="fast", signing=["v1a"])
    place = f"channels/{consumer.channel.slug}/consumers/{consumer.client_id}"
    for name, answer in (
        ("Consumer", admin.get(place)),
        ("ConsumerWithSecret", admin.post(f"{place}/secrets")),
    ):
        assert fits({"$ref": f"#/components/schemas/{name}"}, answer.json) == []


def test_the_api_page_loads_only_own_files(db: None) -> None:
    client = Client()
    page = client.get("/api/docs/")
    assert page.status_code == 200
    assert "http" not in page.content.decode().replace("http-equiv", "")
    assert client.get("/api/docs/?script=").status_code == 200
    assert client.get("/api/schema/?format=json").json()["info"]["title"] == "Hookstation"
