"""Work in other threads, each with a database connection of its own."""

import threading
import time
from collections.abc import Callable
from functools import partial

from django.db import connection


def in_thread(work: Callable[[], object]) -> threading.Thread:
    """Start a thread that closes its own connection at the end."""

    def run() -> None:
        try:
            work()
        finally:
            connection.close()

    thread = threading.Thread(target=run)
    thread.start()
    return thread


def at_once(*works: Callable[[], object], ignoring: tuple[type[Exception], ...] = ()) -> None:
    """Run each in its own thread, all starting at the same moment; wait until all have ended.

    Raises the first error that is none of ``ignoring``.
    """
    barrier = threading.Barrier(len(works))
    errors: list[BaseException] = []

    def run(work: Callable[[], object]) -> None:
        try:
            connection.ensure_connection()
            barrier.wait(60)
            work()
        except ignoring:
            pass
        except BaseException as error:
            errors.append(error)

    threads = [in_thread(partial(run, work)) for work in works]
    for thread in threads:
        thread.join()
    if errors:
        raise errors[0]


def is_lock_awaited() -> bool:
    """Whether a session of this database waits for a row lock. For MariaDB only."""
    time.sleep(0.15)  # MariaDB shows the same result again to whoever asks within 0.1 s
    with connection.cursor() as cursor:
        cursor.execute(
            "SELECT COUNT(*) FROM information_schema.innodb_trx AS open "
            "JOIN information_schema.processlist AS thread ON thread.id = open.trx_mysql_thread_id "
            "WHERE thread.db = DATABASE() AND open.trx_state = 'LOCK WAIT'"
        )
        ((count,),) = cursor.fetchall()
    return bool(count)
