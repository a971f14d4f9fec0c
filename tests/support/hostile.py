"""What somebody would put into a table to have code run by whoever reads it."""

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
    """Makes a file when it is unpickled."""

    def __init__(self, witness: Path) -> None:
        self.witness = witness

    def __reduce__(self) -> Any:
        return os.system, (f"touch {self.witness}",)


def stored(value: Any) -> Any:
    """A value as a column of pickles has it. Storing the value itself would run it already."""
    return PickledObject(base64.b64encode(pickle.dumps(value)).decode())


def signed_by_django_q2(value: Any, key: str) -> str:
    """A queued package as django-q2 makes it with that key."""
    return str(signing.dumps(value, key, Conf.PREFIX, serializer=PickleSerializer))
