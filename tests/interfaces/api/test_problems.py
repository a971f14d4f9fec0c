"""Problem responses: complete, JSON everywhere below /api/, and without internal details."""

import pytest
from django.db import InterfaceError, OperationalError

from channels_app.api import problems
from channels_app.registry.cache import ConfigCache
from tests.support.api import Api
from tests.support.factories import ChannelFactory

URL = "channels/orders"


def test_an_unknown_address_is_a_problem(nobody: Api) -> None:
    for path in ("nothing", "channels/", "channels/a/b", "../v2/x", "/api/v9/"):
        answer = nobody.get(path)
        assert (answer.status, answer.json["code"]) == (404, "not_found"), path
        assert answer.is_problem


def test_a_405_names_the_methods_that_are_allowed(admin: Api) -> None:
    answer = admin.call("TRACE", URL)
    assert answer.status == 405
    assert answer.is_problem
    assert "PUT" in str(answer.header("Allow"))


def test_a_thousand_parameters_are_a_problem(admin: Api) -> None:
    answer = admin.get("channels?" + "&".join(f"a{n}=1" for n in range(1100)))
    assert answer.status in {400, 422}
    assert answer.is_problem


@pytest.mark.parametrize("error", [OperationalError, InterfaceError])
def test_a_storage_error_is_503_without_secrets(
    admin: Api, monkeypatch: pytest.MonkeyPatch, error: type[Exception]
) -> None:
    def fail(*_: object, **__: object) -> None:
        raise error(2003, "Can't connect to MySQL server on 'db.internal:3306'")

    monkeypatch.setattr(ConfigCache, "refresh", fail)
    for method, path in (("GET", URL), ("POST", f"{URL}/messages"), ("PUT", URL)):
        answer = admin.call(method, path, b"{}")
        assert (answer.status, answer.header("Retry-After")) == (503, "1")
        assert answer.is_problem
        assert b"db.internal" not in answer.body


def test_an_unexpected_error_is_500_without_details(
    admin: Api, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object, **__: object) -> None:
        raise RuntimeError("password=hunter2")

    monkeypatch.setattr(ConfigCache, "refresh", fail)
    admin.raises = False
    answer = admin.get(URL)
    assert (answer.status, answer.json["code"]) == (500, "internal_error")
    assert answer.is_problem
    assert b"hunter2" not in answer.body


def test_a_malformed_body_is_a_problem(admin: Api) -> None:
    ChannelFactory.create(slug="orders")
    malformed = (
        *(b"{", b"", b"[]", b'"text"', b"null", b'{"description": NaN}', b"\xff\xfe", b"{}\x00"),
        b'{"description":' * 50_000,
        b'{"retention_days": ' + b"9" * 5000 + b"}",
    )
    for body, kind, status in (
        *((body, "application/json", 400) for body in malformed),
        (b"a=b", "application/x-www-form-urlencoded", 415),
        *((b"{}", kind, 415) for kind in ("text/plain", "")),
        (b" " * (1024 * 1024 + 1), "application/json", 413),
    ):
        answer = admin.call("PATCH", URL, body, content_type=kind)
        assert answer.status == status, body[:20]
        assert answer.is_problem


def test_json_content_type_parameters_are_accepted(admin: Api) -> None:
    answer = admin.call("PUT", URL, b"{}", content_type="Application/JSON; charset=utf-8")
    assert answer.status == 201


def test_echoed_values_in_problems_are_encodable() -> None:
    document = problems.document(422, "invalid_fields", "half \ud800", field="\udfff")
    assert (document["detail"], document["field"]) == ("half \\ud800", "\\udfff")
