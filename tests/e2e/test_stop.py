"""The flag that stops a cluster, with real processes: a killed waiter blocks no other."""

import multiprocessing
import os
import signal
import threading
from pathlib import Path

import pytest

from delivery.processes.task_queue import Stop
from tests.support.broker import wait_until

FORK = multiprocessing.get_context("fork")


def _sleeps(pid: int) -> bool:
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "S"


def test_stop_event_is_set_for_all_processes() -> None:
    stop = Stop()
    assert not stop.is_set()
    assert not stop.wait(0.01)
    stop.set()
    assert stop.is_set()
    assert stop.wait(60)
    assert stop.is_set()


@pytest.mark.parametrize("dies", [True, False])
def test_a_process_killed_while_waiting_does_not_delay_the_stop(dies: bool) -> None:
    stop = Stop()
    waiting = [FORK.Process(target=stop.wait, args=[60]) for _ in range(3)]
    for process in waiting:
        process.start()
        wait_until(lambda pid=process.pid: _sleeps(pid), 10, "it does not wait")  # type: ignore[misc]  # a lambda with a default
    if dies:
        os.kill(waiting[0].pid or 0, signal.SIGKILL)
        waiting[0].join()
    setting = threading.Thread(target=stop.set, daemon=True)
    setting.start()
    setting.join(10)
    assert not setting.is_alive()
    for process in waiting:
        process.join(10)
    assert [process.exitcode for process in waiting] == [-signal.SIGKILL if dies else 0, 0, 0]
