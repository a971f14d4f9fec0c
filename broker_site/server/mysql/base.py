"""Save round trips: transactions begin with their first statement, health checks are local."""

import select
from typing import Any

from django.db.backends.mysql import base
from django.db.utils import IntegrityError
from MySQLdb import OperationalError

UNKNOWN_VARIABLE = 1193


def read_committed_only(connection: Any) -> None:
    """Turn off MariaDB's ``innodb_snapshot_isolation`` for the session, if the server has it.

    From 11.6.2 on it is on. Then an UPDATE that scans waits for locks on rows that it does not
    match, in READ COMMITTED too (docs/decisions/0039). Takes a connection of MySQLdb.
    """
    try:
        connection.query("SET SESSION innodb_snapshot_isolation = OFF")
    except OperationalError as error:
        if error.args[0] != UNKNOWN_VARIABLE:
            raise


class CursorWrapper(base.CursorWrapper):
    """Sends BEGIN together with a transaction's first statement.

    Maps errors of a packet's later statements to the exception classes that Django uses for the
    first one.
    """

    def __init__(self, cursor: Any, database: "DatabaseWrapper") -> None:
        super().__init__(cursor)
        self._database = database

    def execute(self, query: str, args: Any = None) -> Any:
        if not self._database.begins:
            return super().execute(query, args)
        self._database.begins = False
        try:
            super().execute(f"BEGIN; {query}", args)
        except Exception as error:
            # Only a lost connection fails here; if quoting the values failed, nothing was sent.
            self._database.begins = not isinstance(error, OperationalError)
            raise
        self.nextset()
        return self.cursor.rowcount

    def executemany(self, query: str, args: Any) -> Any:
        if self._database.begins:
            self._database.begins = False
            super().execute("BEGIN")
        return super().executemany(query, args)

    def nextset(self) -> Any:
        try:
            return self.cursor.nextset()
        except OperationalError as error:
            if error.args[0] in self.codes_for_integrityerror:
                raise IntegrityError(*error.args) from None
            raise


class DatabaseWrapper(base.DatabaseWrapper):
    """A transaction needs one extra round trip instead of three, a request one less.

    Django itself turns autocommit off and on around each transaction, and pings the server before
    the first statement of each request.
    """

    begins = False
    """A transaction has begun in Django, but BEGIN was not sent yet."""
    ended = False
    """The server has already ended the transaction (`raw.execute_last`)."""

    def create_cursor(self, name: str | None = None) -> CursorWrapper:
        return CursorWrapper(self.connection.cursor(), self)

    def get_new_connection(self, conn_params: dict[str, Any]) -> Any:
        self.begins = self.ended = False
        connection = super().get_new_connection(conn_params)
        read_committed_only(connection)
        return connection

    def _start_transaction_under_autocommit(self) -> None:
        # Django calls this hook instead of turning autocommit off.
        self.begins = True

    def _commit(self) -> None:
        if not self._forget():
            super()._commit()  # type: ignore[misc]  # the stubs leave it out

    def _rollback(self) -> None:
        if not self._forget():
            super()._rollback()  # type: ignore[misc]  # and this

    def _forget(self) -> bool:
        """Reset the flags; return whether the server needs neither COMMIT nor ROLLBACK."""
        is_over = self.begins or self.ended
        self.begins = self.ended = False
        return is_over

    def _set_autocommit(self, autocommit: bool) -> None:
        if autocommit != self.connection.get_autocommit():
            with self.wrap_database_errors:
                self.connection.autocommit(autocommit)

    def is_usable(self) -> bool:
        """Whether the connection is still open.

        An idle server sends nothing. If the socket is readable, the server has probably closed the
        connection, and Django's ping decides.
        """
        if self.errors_occurred:
            # The driver may have closed the socket, and its descriptor may belong to another file
            # now.
            return bool(super().is_usable())
        poll = select.poll()
        poll.register(self.connection.fileno(), select.POLLIN)
        return not poll.poll(0) or bool(super().is_usable())
