"""Running a transaction that a deadlock, a lock wait or a key collision may undo."""

from collections.abc import Callable
from typing import TypeVar

from django.db import IntegrityError, OperationalError, transaction

T = TypeVar("T")

ATTEMPTS = 4
UNDONE = {1205, 1213, 3101}
"""MySQL: lock wait timeout, deadlock, group replication rolled back at certification."""


def run(
    work: Callable[[], T],
    *,
    on_collision: Callable[[], None] | None = None,
    attempts: int = ATTEMPTS,
) -> T:
    """``work`` in one transaction, again when the database undid it through no fault of ours.

    With ``on_collision`` a unique key met twice is such a case too; it is called before the retry.
    Raises what the last try raised.
    """
    for remaining in reversed(range(attempts)):
        try:
            with transaction.atomic():
                return work()
        except OperationalError as error:
            if not remaining or not error.args or error.args[0] not in UNDONE:
                raise
        except IntegrityError:
            if not remaining or on_collision is None:
                raise
            on_collision()
    raise AssertionError("unreachable")
