"""Simulate hosts with different encryption keys, one after the other in the test's process."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace

from django.conf import settings
from django.test import override_settings

from channels_app import conf
from channels_app.core.encryption import Keyring
from channels_app.registry import data_encryption
from channels_app.registry.cache import config_cache


@contextmanager
def host(*keys: str, secret: str = "", former: Sequence[str] = ()) -> Iterator[Keyring]:
    """Use these settings like a new process: caches are cleared before and after."""
    changed = override_settings(
        ENVIRONMENT=replace(settings.ENVIRONMENT, encryption_keys=keys),
        SECRET_KEY=secret or settings.SECRET_KEY,
        SECRET_KEY_FALLBACKS=list(former),
    )
    with changed:
        _forget()
        yield conf.keyring()
    _forget()


def _forget() -> None:
    conf.keyring.cache_clear()
    data_encryption.forget()
    config_cache.__init__()  # type: ignore[misc]  # begins anew
