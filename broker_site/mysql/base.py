"""The connection: a transaction is BEGIN and COMMIT, a look at its health costs no round trip."""

import select
from typing import Any

from django.db.backends.mysql import base
from django.db.utils import IntegrityError
from MySQLdb import OperationalError


class CursorWrapper(base.CursorWrapper):
    """Gives errors of a packet's later statements the class that Django gives the first one's."""

    def nextset(self) -> Any:
        try:
            return self.cursor.nextset()
        except OperationalError as error:
            if error.args[0] in self.codes_for_integrityerror:
                raise IntegrityError(*error.args) from None
            raise


class DatabaseWrapper(base.DatabaseWrapper):
    """A transaction costs two round trips of its own in place of three, a request one less.

    Django turns autocommit off and on around each transaction, and pings the server before the
    first statement of each request.
    """

    def create_cursor(self, name: str | None = None) -> CursorWrapper:
        return CursorWrapper(self.connection.cursor())

    def _start_transaction_under_autocommit(self) -> None:
        # Django calls this hook in place of turning autocommit off.
        with self.wrap_database_errors:
            self.connection.query("BEGIN")

    def _set_autocommit(self, autocommit: bool) -> None:
        if autocommit != self.connection.get_autocommit():
            with self.wrap_database_errors:
                self.connection.autocommit(autocommit)

    def is_usable(self) -> bool:
        """Whether the server is still there.

        Whoever hung up has something to be read, if only its end; a server that is asked nothing
        says nothing else.
        """
        if self.errors_occurred:
            # The driver may have closed its socket, whose number may be another file's by now.
            return bool(super().is_usable())
        poll = select.poll()
        poll.register(self.connection.fileno(), select.POLLIN)
        return not poll.poll(0) or bool(super().is_usable())
