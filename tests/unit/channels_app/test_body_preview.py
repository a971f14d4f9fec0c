"""Body previews: no body that a producer sends breaks a page."""

from hypothesis import given
from hypothesis import strategies as st

from channels_app.core import body_preview
from tests.support.properties import quick

FORM = "application/x-www-form-urlencoded; charset=utf-8"


def test_json_is_indented_and_keeps_its_letters() -> None:
    assert body_preview.show('{"a":"ü"}'.encode()).pretty == '{\n  "a": "ü"\n}'


def test_a_form_has_its_fields_in_order() -> None:
    body = b"name=Ada+L.&note=&name=%3Cb%3E"
    assert body_preview.show(body, FORM).fields == (
        ("name", "Ada L."),
        ("note", ""),
        ("name", "<b>"),
    )
    assert body_preview.show(body, "text/plain").fields == ()


def test_binary_bodies_are_shown_only_as_hex() -> None:
    shown = body_preview.show(b"\xff\xfe\x00A")
    assert (shown.text, shown.pretty) == ("", "")
    assert shown.hexdump.startswith("00000000  ff fe 00 41")
    assert shown.hexdump.endswith("...A")


def test_a_cut_through_a_character_does_not_make_it_binary() -> None:
    body = b"x" * (body_preview.MAX_TEXT - 1) + "ü".encode() + b"more"
    shown = body_preview.show(body)
    assert shown.text == "x" * (body_preview.MAX_TEXT - 1)
    assert shown.is_cut
    assert shown.size == len(body)


@quick
@given(st.binary(max_size=300), st.sampled_from(["", FORM, "application/json"]))
def test_any_bytes_can_be_shown(body: bytes, content_type: str) -> None:
    shown = body_preview.show(body, content_type)
    assert shown.size == len(body)
    assert bool(shown.hexdump) == bool(body)
    if shown.text:
        assert shown.text.encode() == body


def test_a_body_that_is_nested_too_deep_is_text() -> None:
    assert body_preview.show(b"[" * 100_000).pretty == ""
