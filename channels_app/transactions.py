"""Run a transaction, and again after a deadlock, a lock wait timeout or a key collision."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import TypeVar

from django.db import (
    Error,
    IntegrityError,
    InterfaceError,
    OperationalError,
    connection,
    connections,
    transaction,
)

from channels_app import failpoints
from channels_app.models import raw

T = TypeVar("T")

ATTEMPTS = 4
ANSWER_TIMEOUT_S = 60
"""Longest wait for the database's response, in seconds; longer than its own wait for a lock."""
REQUEST_TIMEOUT_S = 30
"""The limit for processes that respond to requests: for the turn to commit, and again for the
commit. So a request takes at most a minute, whatever the database does."""
UNDONE = {1205, 1213, 3101}
"""MySQL: lock wait timeout, deadlock, group replication rolled back at certification."""


def limit_answer_time(seconds: int = ANSWER_TIMEOUT_S) -> None:
    """Limit how long a statement of this process waits for a response.

    For processes that live long: if the database's host vanishes, no connection is closed, and
    they would wait two hours until the kernel closes it. Management commands have no limit, since
    a migration of large tables takes long.
    """
    for database in connections.settings.values():
        if database["ENGINE"] == "broker_site.mysql":
            database["OPTIONS"].setdefault("read_timeout", seconds)


def run(
    work: Callable[[], T],
    *,
    on_collision: Callable[[], None] | None = None,
    attempts: int = ATTEMPTS,
) -> T:
    """Run ``work`` in one transaction, and again if the database rolled it back (``UNDONE``).

    With ``on_collision`` a violated unique key is retried too, after a call of it. Raises what the
    last try raised.
    """

    def attempt() -> T:
        with transaction.atomic():
            return work()

    return retry(attempt, on_collision=on_collision, attempts=attempts)


def retry(
    work: Callable[[], T],
    *,
    on_collision: Callable[[], None] | None = None,
    attempts: int = ATTEMPTS,
) -> T:
    """As ``run``, for work that opens its transaction itself."""
    for remaining in reversed(range(attempts)):
        try:
            return work()
        except OperationalError as error:
            if not remaining or not error.args or error.args[0] not in UNDONE:
                raise
        except IntegrityError:
            if not remaining or on_collision is None:
                raise
            on_collision()
    raise AssertionError("unreachable")


def write(statements: Sequence[raw.Statement]) -> None:
    """Execute all ``statements`` or none; where possible in one round trip, with BEGIN and COMMIT.

    Only MySQL takes several statements in one packet, of up to a few MiB (``max_allowed_packet``).
    Raises what the database raises; nothing was stored then, unless the connection broke
    (``is_away``).
    """
    if connection.in_atomic_block:
        _write_each(statements)
    elif connection.vendor == "mysql" and raw.fit_together(statements):
        _write_at_once(statements)
    else:
        with transaction.atomic():
            _write_each(statements)


@contextmanager
def snapshot() -> Iterator[None]:
    """Read a consistent state of the database: concurrent changes are not seen.

    Takes no locks and waits for none. It must be short, because the database keeps old row versions
    for it.
    """
    if connection.in_atomic_block:
        yield  # the caller's transaction
        return
    if connection.vendor == "mysql":
        with connection.cursor() as cursor:
            # For the next transaction only; the installation's default is READ COMMITTED.
            cursor.execute("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ")
        with transaction.atomic():
            yield
        return
    # Not Django's atomic(), which takes SQLite's only write lock (settings.py).
    with connection.cursor() as cursor:
        cursor.execute("BEGIN DEFERRED")
        try:
            yield
        finally:
            cursor.execute("ROLLBACK")


def is_away(error: Exception) -> bool:
    """Whether the error says that the database is unavailable.

    After such an error it is unknown whether a transaction in progress was committed.
    """
    if isinstance(error, OperationalError) and error.args and isinstance(error.args[0], int):
        # Codes from 2000 to 2999 come from the client, which lost the server; others from the
        # server.
        return 2000 <= error.args[0] < 3000
    return isinstance(error, OperationalError | InterfaceError)


def _write_each(statements: Sequence[raw.Statement]) -> None:
    for sql, values in statements:
        raw.execute(sql, values)
    failpoints.reach("in_write")


def _write_at_once(statements: Sequence[raw.Statement]) -> None:
    sql = "; ".join(["BEGIN", *[sql for sql, _ in statements], "COMMIT"])
    values = [value for _, values in statements for value in values]
    cursor = connection.cursor()
    try:
        cursor.execute(sql, values)
        # One result for each statement; the first that failed is the last.
        results = 1
        while cursor.nextset():
            results += 1
        if results < len(statements) + 2:
            raise OperationalError(raw.LOST, "The server did not answer for all of a packet.")
    except Error as error:
        try:
            cursor.execute("ROLLBACK")
        except Error:
            connection.close()
            raise OperationalError(raw.LOST, str(error)) from error
        raise
    except BaseException:
        # Interrupted: the remaining results would be taken for those of the next statement.
        connection.close()
        raise
