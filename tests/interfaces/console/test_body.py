"""How the console shows a body, and the command that repeats its request."""

import shlex

import pytest

from channels_app.admin import body
from channels_app.core import body_preview
from tests.support import console
from tests.support.factories import MessageFactory

pytestmark = pytest.mark.django_db


def test_a_form_is_shown_field_by_field() -> None:
    message = MessageFactory.create(
        content_type="application/x-www-form-urlencoded; charset=utf-8",
        body=b"name=Ada+L.&note=&name=%3Cb%3E",
    )

    assert body.view(message).fields == (("name", "Ada L."), ("note", ""), ("name", "<b>"))
    text = console.look(console.operator(), console.page_url(message))
    assert "&lt;b&gt;" in text
    assert "<b>" not in text


def test_a_body_that_is_not_a_form_is_not_shown_as_one() -> None:
    for data in (b"", b"no form at all", b"\xff=1", b"&".join([b"a=1"] * 501)):
        message = MessageFactory.create(content_type=body_preview.FORM, body=data)
        assert body.view(message).fields == ()


@pytest.mark.parametrize("data", ["{}", 'it\'s "quoted" $HOME `ls`\n', "ü"])
def test_the_command_publishes_the_same_text(data: str) -> None:
    message = MessageFactory.create(body=data.encode(), event_type="order.paid")

    words = shlex.split(body.publishing(message, body.view(message).data).replace("\\\n", " "))

    assert words[0] == "curl"
    assert words[5].endswith(f"/api/v1/channels/{message.channel.slug}/messages")
    assert "Authorization: Bearer $KEY" in words
    assert "Hookstation-Event-Type: order.paid" in words
    assert words[-2:] == ["--data-binary", data]


def test_a_long_body_has_no_command() -> None:
    message = MessageFactory.create(body=b"x" * 70_000)
    assert body.publishing(message, body.view(message).data) == ""
