"""The pipeline decrypts the broker's encrypted responses only with the broker's keys."""

import pytest

from channels_app.core.encryption import Keyring, generate_key
from channels_app.registry import data_encryption
from channels_app.registry.data_encryption import StoredResponse
from pipeline.core import encryption
from pipeline.core.encryption import DecryptionKeys

OLD, NEW = generate_key(), generate_key()
SAID = StoredResponse("no such\ncustomer", "HTTP/1.1 500 Oops\r\n", b"line 1\nline 2\xff")


def encrypt(monkeypatch: pytest.MonkeyPatch, *keys: str) -> bytes:
    monkeypatch.setattr(data_encryption, "encrypting_key", lambda: Keyring.from_texts(keys))
    return data_encryption.encrypt_response(7, 2, SAID)


def test_an_answer_opens_with_each_installed_key(monkeypatch: pytest.MonkeyPatch) -> None:
    for first, second in ((OLD, NEW), (NEW, OLD)):
        envelope = encrypt(monkeypatch, first, second)
        assert envelope.startswith(encryption.ENCRYPTED)
        assert DecryptionKeys([OLD, NEW]).decrypt_response(7, 2, "", envelope) == (
            SAID.error,
            SAID.body,
        )


def test_the_key_of_an_installation_that_set_none(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        data_encryption, "encrypting_key", lambda: Keyring.from_texts([], ["a secret"])
    )
    envelope = data_encryption.encrypt_response(7, 2, SAID._replace(error=""))
    keys = DecryptionKeys([encryption.derived_key("a secret")])
    assert keys.decrypt_response(7, 2, "its own words", envelope) == ("its own words", SAID.body)


def test_what_does_not_open_is_none(monkeypatch: pytest.MonkeyPatch) -> None:
    envelope = encrypt(monkeypatch, NEW)
    assert DecryptionKeys([]).decrypt_response(7, 2, "", envelope) is None
    assert DecryptionKeys([OLD]).decrypt_response(7, 2, "", envelope) is None
    assert DecryptionKeys([NEW]).decrypt_response(7, 3, "", envelope) is None
    assert DecryptionKeys([NEW]).decrypt_response(7, 2, "", envelope[:10]) is None


def test_digests_of_sealed_answers_need_the_key() -> None:
    assert (
        len(
            {
                DecryptionKeys([]).mac_key,
                DecryptionKeys([OLD]).mac_key,
                DecryptionKeys([NEW, OLD]).mac_key,
            }
        )
        == 3
    )
