"""Stop: how a cluster tells its workers to finish, which the death of none of them can spoil."""

import os
import select


class Stop:
    """A flag that is set once, seen by this process and by all that it forks.

    Not multiprocessing.Event: a process that is killed while it asks keeps that one's lock, and one
    that is killed while it waits is waited for; then its siblings, or whoever sets it, stand still.
    """

    def __init__(self) -> None:
        self._reader, self._writer = os.pipe()

    def set(self) -> None:
        """For good: nobody takes out of the pipe what is put into it here."""
        os.write(self._writer, b".")

    def is_set(self) -> bool:
        """Whether it is."""
        return self.wait(0.0)

    def wait(self, seconds: float) -> bool:
        """Until it is set, or so long; whether it is."""
        poll = select.poll()
        poll.register(self._reader, select.POLLIN)
        return bool(poll.poll(max(0.0, seconds) * 1000))
