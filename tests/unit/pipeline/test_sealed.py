"""The pipeline decrypts the broker's encrypted responses only with the broker's keys."""

import pytest

from channels_app.core.encryption import Keyring, generate_key
from channels_app.registry import data_encryption
from channels_app.registry.data_encryption import StoredResponse
from pipeline.rules import sealed
from pipeline.rules.sealed import Keys

OLD, NEW = generate_key(), generate_key()
SAID = StoredResponse("no such\ncustomer", "HTTP/1.1 500 Oops\r\n", b"line 1\nline 2\xff")


def encrypt(monkeypatch: pytest.MonkeyPatch, *keys: str) -> bytes:
    monkeypatch.setattr(data_encryption, "encrypting_key", lambda: Keyring.from_texts(keys))
    return data_encryption.encrypt_response(7, 2, SAID)


def test_an_answer_opens_with_each_installed_key(monkeypatch: pytest.MonkeyPatch) -> None:
    for first, second in ((OLD, NEW), (NEW, OLD)):
        envelope = encrypt(monkeypatch, first, second)
        assert envelope.startswith(sealed.SEALED)
        assert Keys([OLD, NEW]).answer(7, 2, "", envelope) == (SAID.error, SAID.body)


def test_the_key_of_an_installation_that_set_none(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        data_encryption, "encrypting_key", lambda: Keyring.from_texts([], ["a secret"])
    )
    envelope = data_encryption.encrypt_response(7, 2, SAID._replace(error=""))
    keys = Keys([sealed.derived("a secret")])
    assert keys.answer(7, 2, "its own words", envelope) == ("its own words", SAID.body)


def test_what_does_not_open_is_none(monkeypatch: pytest.MonkeyPatch) -> None:
    envelope = encrypt(monkeypatch, NEW)
    assert Keys([]).answer(7, 2, "", envelope) is None
    assert Keys([OLD]).answer(7, 2, "", envelope) is None
    assert Keys([NEW]).answer(7, 3, "", envelope) is None
    assert Keys([NEW]).answer(7, 2, "", envelope[:10]) is None


def test_digests_of_sealed_answers_need_the_key() -> None:
    assert len({Keys([]).mac_key, Keys([OLD]).mac_key, Keys([NEW, OLD]).mac_key}) == 3
