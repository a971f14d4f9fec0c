"""Running a transaction that a deadlock, a lock wait or a key collision may undo."""

from collections.abc import Callable, Sequence
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
"""Longest wait for the database's answer, more than it waits for a lock."""
REQUEST_TIMEOUT_S = 30
"""The same where somebody waits for ours: so long for its turn to commit, and so long for the
commit. It is a minute in all, whatever the database does."""
UNDONE = {1205, 1213, 3101}
"""MySQL: lock wait timeout, deadlock, group replication rolled back at certification."""


def limit_answer_time(seconds: int = ANSWER_TIMEOUT_S) -> None:
    """Let no statement of this process wait for an answer for ever.

    For processes that live long: a server that vanished with its host, of whose end nobody is told,
    would hold them until the kernel gives the connection up, after two hours. Management commands
    may wait: a migration of large tables takes its time.
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
    """``work`` in one transaction, again when the database undid it through no fault of ours.

    With ``on_collision`` a unique key met twice is such a case too; it is called before the retry.
    Raises what the last try raised.
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
    """As ``run``, for work that makes its transaction itself."""
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
    """Execute all ``statements`` or none; with BEGIN and COMMIT in one round trip where possible.

    Only MySQL takes several statements at once, up to a few MiB (``max_allowed_packet``). Raises
    what the database raises; then nothing was stored, unless the connection broke (``is_away``).
    """
    if connection.in_atomic_block:
        _write_each(statements)
    elif connection.vendor == "mysql" and raw.fit_together(statements):
        _write_at_once(statements)
    else:
        with transaction.atomic():
            _write_each(statements)


def is_away(error: Exception) -> bool:
    """Whether the error says that the database cannot be used now, by whomever.

    After it what was about to be committed may be stored or not.
    """
    if isinstance(error, OperationalError) and error.args and isinstance(error.args[0], int):
        # From 2000 on the client speaks, having lost the server; the others are the server's own.
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
        # Interrupted in between: the results that are left would be the next statement's.
        connection.close()
        raise
