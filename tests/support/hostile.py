"""Create values that an attacker with write access to a table would use to run code."""

import base64
import os
import pickle
from pathlib import Path
from typing import Any

from django.core import signing
from django_q.conf import Conf
from django_q.signing import PickleSerializer
from picklefield.fields import PickledObject  # type: ignore[import-untyped]  # it has no types


class Bomb:
    """Creates a file when it is unpickled."""

    def __init__(self, witness: Path) -> None:
        self.witness = witness

    def __reduce__(self) -> Any:
        return os.system, (f"touch {self.witness}",)


def stored(value: Any) -> Any:
    """Return a value as a pickle column stores it. Storing the value itself would run it."""
    return PickledObject(base64.b64encode(pickle.dumps(value)).decode())


def signed_by_django_q2(value: Any, key: str) -> str:
    """Return a queued package as django-q2 signs it with that key."""
    return str(signing.dumps(value, key, Conf.PREFIX, serializer=PickleSerializer))
