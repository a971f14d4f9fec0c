"""Run the broker's processes: restart those that die or hang, and leave none behind."""

import logging
import os
import select
import signal
import socket
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from types import FrameType

from setproctitle import getproctitle, setproctitle

from delivery.processes.control import HANDLED, Child, Process, Reaper, is_stopped, reap_orphans

logger = logging.getLogger(__name__)

TICK_S = 1.0
"""Longest wait of the loop in seconds; signals and deaths of children end it at once."""
SHORT_TICK_S = 0.05
"""Shortest wait of the loop in seconds, while a child's last processes end."""
STALE_S = 60.0
"""Age in seconds of a probe's result that is ignored: this process did not run in between."""
MAX_STOPPED_CHECKS = 2
"""Checks in a row, a tick apart, that find a process stopped before it is killed. Checks are
counted instead of seconds: if the whole broker was stopped, this process may continue first."""
MAX_FAILED_PROBES = 3
"""Failed probes in a row before a child is killed. A single one may only mean that the database has
just come back and the child could not write yet."""


class Prober:
    """A child process that calls the other children's ``is_alive`` every few seconds.

    The results usually come from the database. While that hangs, the supervisor must still react to
    SIGTERM and restart children that died. Threads of the supervisor would do for that, but a
    process with threads cannot fork, and the supervisor restarts children as forks.
    """

    def __init__(self, children: Sequence[Child], every_s: float) -> None:
        self._children = [child for child in children if child.is_alive]
        self._every_s = every_s
        self._failed_probes: dict[str, list[float]] = {child.name: [] for child in self._children}
        """By child: when its last probes began (monotonic), if all of them failed."""
        self.read_end, self.write_end = os.pipe()
        os.set_blocking(self.read_end, False)
        self._unread = b""

    @property
    def as_children(self) -> list[Child]:
        """A list with the prober's own `Child`; empty if no child has ``is_alive``."""
        child = Child(name="prober", body=self._run)
        return [child] if self._children else []

    def stalled_after(self, name: str, instant: float) -> bool:
        """Whether a child's last probes all failed and began after ``instant`` (monotonic)."""
        failed_probes = self._failed_probes.get(name, [])
        return (
            len(failed_probes) >= MAX_FAILED_PROBES and failed_probes[-MAX_FAILED_PROBES] > instant
        )

    def read_results(self) -> None:
        """Note the results since the last call."""
        with suppress(BlockingIOError):
            while read := os.read(self.read_end, 65_536):
                self._unread += read
        *lines, self._unread = self._unread.split(b"\n")
        for line in lines:
            number, is_alive, asked_at = line.split()
            if float(asked_at) < time.monotonic() - STALE_S:
                continue
            name = self._children[int(number)].name
            failed_probes = [*self._failed_probes[name], float(asked_at)]
            self._failed_probes[name] = (
                [] if is_alive == b"1" else failed_probes[-MAX_FAILED_PROBES:]
            )

    def close(self) -> None:
        """Close the pipe."""
        os.close(self.read_end)
        os.close(self.write_end)

    def _run(self) -> None:
        """In the process: probe each child in a thread, so that none waits for another's answer."""
        setproctitle(f"{getproctitle()} prober")
        threads = [
            threading.Thread(target=self._probe, args=[number, child], daemon=True)
            for number, child in enumerate(self._children)
        ]
        for thread in threads:
            thread.start()
        while all(thread.is_alive() for thread in threads):
            threads[0].join(TICK_S)

    def _probe(self, number: int, child: Child) -> None:
        assert child.is_alive is not None
        is_known = True
        while True:
            time.sleep(self._every_s)
            asked_at = time.monotonic()
            try:
                is_alive = bool(child.is_alive())
                is_known = True
            except Exception:
                # An unknown state is no reason to kill: a database outage would otherwise end the
                # workers as well. Logged once instead of every few seconds.
                if is_known:
                    logger.warning("the heartbeat of %s cannot be read", child.name, exc_info=True)
                is_known = False
            else:
                # Shorter than PIPE_BUF, so lines of two threads do not mix.
                os.write(self.write_end, f"{number} {is_alive:d} {asked_at}\n".encode())


class Supervisor:
    """Keeps its children running until SIGTERM, SIGINT or SIGHUP, then stops them.

    Each child has its own session, so Ctrl-C in a terminal reaches only the supervisor. It stops
    every child in the same way: SIGTERM to its main process, ``grace_s`` seconds, SIGKILL to its
    whole group. A second signal skips the rest of the wait. If the supervisor itself is killed, the
    reaper kills all groups (delivery/processes/reaper.py).

    Children with a ``body`` start, and start again, as forks of the supervisor, which has loaded
    the code.
    """

    def __init__(
        self, children: Sequence[Child], *, grace_s: float = 20.0, probe_s: float = 3.0
    ) -> None:
        self._children = children
        self._grace_s = grace_s
        self._prober = Prober(children, probe_s)
        self._signals: list[int] = []
        self._processes: list[Process] = []
        self._stopped: dict[int, int] = {}
        """How many checks ago a process was first found stopped, by process id."""
        self._next_check = 0.0

    @property
    def is_stopping(self) -> bool:
        """Whether it was told to stop; for other threads of the process."""
        return bool(self._signals)

    def run(self, on_start: Callable[[], object] | None = None) -> None:
        """Block until told to stop. Call this in the main thread, because it handles signals.

        ``on_start`` is called when all children have started. If it starts threads, children start
        again by their commands, and the prober not at all.
        """
        with self._hearing_signals() as (wakeup, signal_fd):
            reaper = Reaper()
            # The prober keeps the write end of its pipe.
            private = (wakeup.fileno(), signal_fd, self._prober.read_end)
            pipe_ends = (*private, self._prober.write_end)
            self._processes = [
                *(Process(child, reaper, pipe_ends) for child in self._children),
                *(Process(child, reaper, private) for child in self._prober.as_children),
            ]
            try:
                for process in self._processes:
                    process.start()
                if on_start:
                    on_start()
                while not self._signals:
                    reaper.ensure()
                    reap_orphans([reaper.pid, *(process.pid for process in self._processes)])
                    self._prober.read_results()
                    for process in self._processes:
                        self._supervise(process)
                    self._kill_stopped()
                    self._wait(wakeup, self._until_next_start())
                self._stop(wakeup)
            finally:
                # Whatever ended the loop, no process remains: closing the reaper kills the rest.
                reaper.close()
                self._prober.close()

    def _supervise(self, process: Process) -> None:
        if process.has_ended():
            status = process.reap()
            pause_s = process.start_at - time.monotonic()
            name = process.child.name
            logger.error(
                "%s ended (%s); starting it again in %.0f s", name, _exit_text(status), pause_s
            )
        elif process.is_running:
            self._check_probes(process)
        elif process.may_start():
            process.start()

    def _check_probes(self, process: Process) -> None:
        settled_at = process.started_at + process.child.settle_s
        if self._prober.stalled_after(process.child.name, settled_at):
            logger.error("%s hangs; killing it to start it again", process.child.name)
            process.kill()

    def _kill_stopped(self) -> None:
        """Kill processes that a signal has stopped.

        Other processes take over what such a process holds, so it must not continue and send that
        as well. Its parent, or this process, starts a replacement.
        """
        ticks = time.monotonic()
        if ticks < self._next_check:
            return
        self._next_check = ticks + TICK_S
        stopped = {pid for process in self._processes for pid in process.stopped()}
        self._stopped = {pid: self._stopped.get(pid, 0) + 1 for pid in stopped}
        for pid, looks in self._stopped.items():
            if looks >= MAX_STOPPED_CHECKS and is_stopped(pid):
                logger.error("process %d is stopped by a signal; killing it to start another", pid)
                with suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)

    def _stop(self, wakeup: socket.socket) -> None:
        logger.info("stopping (%s)", signal.Signals(self._signals[0]).name)
        deadline = time.monotonic() + self._grace_s
        for process in self._processes:
            process.ask_to_stop()
        while self._reap_dead() and time.monotonic() < deadline and len(self._signals) == 1:
            self._wait(wakeup, deadline - time.monotonic())
        for process in self._processes:
            if process.is_running:
                logger.error("%s did not stop in time; killing it", process.child.name)
                process.kill()
                process.reap()
        logger.info("stopped")

    def _reap_dead(self) -> bool:
        """Reap ended processes; return whether any still runs."""
        for process in self._processes:
            if process.has_ended():
                process.reap()
        return any(process.is_running for process in self._processes)

    def _until_next_start(self) -> float:
        now = time.monotonic()
        starts = [process.start_at - now for process in self._processes if not process.is_running]
        # A child that is due may have to wait until its previous process group has ended.
        return max(SHORT_TICK_S, min(starts, default=TICK_S))

    def _wait(self, wakeup: socket.socket, seconds: float) -> None:
        """Sleep until a signal, a child's death, or at most ``seconds`` and one tick."""
        select.select([wakeup], [], [], max(0.0, min(seconds, TICK_S)))
        with suppress(BlockingIOError):
            wakeup.recv(1024)

    @contextmanager
    def _hearing_signals(self) -> Iterator[tuple[socket.socket, int]]:
        """Install signal handlers during a run.

        Yields a socket that is readable after a signal, and the descriptor of its other end.
        """
        read_end, write_end = socket.socketpair()
        read_end.setblocking(False)
        write_end.setblocking(False)
        previous_fd = signal.set_wakeup_fd(write_end.fileno(), warn_on_full_buffer=False)
        previous = {number: signal.signal(number, self._note) for number in HANDLED}
        try:
            yield read_end, write_end.fileno()
        finally:
            for number, handler in previous.items():
                signal.signal(number, handler)
            signal.set_wakeup_fd(previous_fd)
            read_end.close()
            write_end.close()

    def _note(self, number: int, frame: FrameType | None) -> None:
        # SIGCHLD only has to wake the loop, which the wake-up descriptor has done.
        if number != signal.SIGCHLD:
            self._signals.append(number)


def _exit_text(status: int) -> str:
    """Return an exit status as text: ``exit code 3`` or ``SIGKILL``."""
    if status >= 0:
        return f"exit code {status}"
    with suppress(ValueError):
        return signal.Signals(-status).name
    return f"signal {-status}"
