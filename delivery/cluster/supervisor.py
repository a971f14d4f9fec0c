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

from delivery.processes.control import Child, Process, Reaper, is_stopped

logger = logging.getLogger(__name__)

TICK_S = 1.0
"""Longest wait of the loop in seconds; signals and deaths of children end it at once."""
MAX_STOPPED_CHECKS = 2
"""Checks in a row, a tick apart, that find a process stopped before it is killed. Checks are
counted instead of seconds: if the whole broker was stopped, this process may continue first."""
MAX_FAILED_PROBES = 3
"""Failed probes in a row before a child is killed. A single one may only mean that the database has
just come back and the child could not write yet."""


class Pulse(threading.Thread):
    """Calls a child's ``is_alive`` every few seconds, in its own thread.

    The result usually comes from the database. While that hangs, the supervisor must still react to
    SIGTERM and restart children that died.
    """

    def __init__(self, name: str, is_alive: Callable[[], bool], every_s: float) -> None:
        super().__init__(name=f"pulse of {name}", daemon=True)
        self._child_name = name
        self._is_alive = is_alive
        self._every_s = every_s
        self._stopped = threading.Event()
        self._failed_probes: list[float] = []

    def stalled_after(self, instant: float) -> bool:
        """Whether all the last probes failed that began after ``instant`` (monotonic)."""
        failed_probes = self._failed_probes
        return (
            len(failed_probes) >= MAX_FAILED_PROBES and failed_probes[-MAX_FAILED_PROBES] > instant
        )

    def run(self) -> None:
        """Probe until stopped."""
        known = True
        while not self._stopped.wait(self._every_s):
            asked_at = time.monotonic()
            try:
                self._failed_probes = (
                    []
                    if self._is_alive()
                    else [*self._failed_probes[1 - MAX_FAILED_PROBES :], asked_at]
                )
                known = True
            except Exception:
                # An unknown state is no reason to kill: a database outage would otherwise end the
                # workers as well. Logged once instead of every few seconds.
                if known:
                    logger.warning(
                        "the heartbeat of %s cannot be read", self._child_name, exc_info=True
                    )
                known = False

    def stop(self) -> None:
        """Stop probing, without waiting for a probe in progress."""
        self._stopped.set()


class Supervisor:
    """Keeps its children running until SIGTERM, SIGINT or SIGHUP, then stops them.

    Each child has its own session, so Ctrl-C in a terminal reaches only the supervisor. It stops
    every child in the same way: SIGTERM to its main process, ``grace_s`` seconds, SIGKILL to its
    whole group. A second signal skips the rest of the wait. If the supervisor itself is killed, the
    reaper kills all groups (delivery/processes/reaper.py).
    """

    def __init__(
        self, children: Sequence[Child], *, grace_s: float = 20.0, pulse_s: float = 3.0
    ) -> None:
        self._children = children
        self._grace_s = grace_s
        self._pulse_s = pulse_s
        self._signals: list[int] = []
        self._processes: list[Process] = []
        self._pulses: dict[str, Pulse] = {}
        self._stopped: dict[int, int] = {}
        """How many checks ago a process was first found stopped, by process id."""
        self._next_check = 0.0

    @property
    def is_stopping(self) -> bool:
        """Whether it was told to stop; for other threads of the process."""
        return bool(self._signals)

    def run(self) -> None:
        """Block until told to stop. Call this in the main thread, because it handles signals."""
        with self._hearing_signals() as wakeup:
            reaper = Reaper()
            self._processes = [Process(child, reaper) for child in self._children]
            self._start_pulses()
            try:
                while not self._signals:
                    reaper.ensure()
                    for process in self._processes:
                        self._supervise(process)
                    self._kill_stopped()
                    self._wait(wakeup, self._until_next_start())
                self._stop(wakeup)
            finally:
                # Whatever ended the loop, no process remains: closing the reaper kills the rest.
                for pulse in self._pulses.values():
                    pulse.stop()
                reaper.close()

    def _supervise(self, process: Process) -> None:
        if process.has_ended():
            status = process.reap()
            pause_s = process.start_at - time.monotonic()
            name = process.child.name
            logger.error(
                "%s ended (%s); starting it again in %.0f s", name, _exit_text(status), pause_s
            )
        elif process.is_running:
            self._check_pulse(process)
        elif time.monotonic() >= process.start_at:
            process.start()

    def _check_pulse(self, process: Process) -> None:
        pulse = self._pulses.get(process.child.name)
        settled_at = process.started_at + process.child.settle_s
        if pulse and pulse.stalled_after(settled_at):
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

    def _start_pulses(self) -> None:
        for child in self._children:
            if child.is_alive:
                pulse = Pulse(child.name, child.is_alive, self._pulse_s)
                self._pulses[child.name] = pulse
                pulse.start()

    def _until_next_start(self) -> float:
        now = time.monotonic()
        starts = [process.start_at - now for process in self._processes if not process.is_running]
        return min(starts, default=TICK_S)

    def _wait(self, wakeup: socket.socket, seconds: float) -> None:
        """Sleep until a signal, a child's death, or at most ``seconds`` and one tick."""
        select.select([wakeup], [], [], max(0.0, min(seconds, TICK_S)))
        with suppress(BlockingIOError):
            wakeup.recv(1024)

    @contextmanager
    def _hearing_signals(self) -> Iterator[socket.socket]:
        """Install signal handlers during a run; yield a socket that is readable after a signal."""
        read_end, write_end = socket.socketpair()
        read_end.setblocking(False)
        write_end.setblocking(False)
        previous_fd = signal.set_wakeup_fd(write_end.fileno(), warn_on_full_buffer=False)
        numbers = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGCHLD)
        previous = {number: signal.signal(number, self._note) for number in numbers}
        try:
            yield read_end
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
