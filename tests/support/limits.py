"""Simulate reached limits without filling anything."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace

import pytest

from channels_app import conf
from channels_app.ingest import storage


@contextmanager
def a_short_disk(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Reserve more disk space than any disk has."""
    whole = conf.conf()
    with monkeypatch.context() as patch:
        patch.setattr(conf, "conf", lambda: replace(whole, disk_reserve_bytes=2**60))
        patch.setattr(storage, "conf", conf.conf)
        storage.forget()
        yield
    storage.forget()
