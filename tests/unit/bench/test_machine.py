"""The benchmark measures CPU time and memory of processes."""

import os
import subprocess
import sys
import time

from bench import machine

BUSY = (
    "import time; end = time.process_time() + 0.2\nwhile time.process_time() < end: pass\ninput()"
)


def test_the_time_of_another_process_is_counted() -> None:
    with subprocess.Popen([sys.executable, "-c", BUSY], stdin=subprocess.PIPE) as process:
        groups = {"busy": [process.pid], "gone": [2**22 - 1]}
        while machine.cpu_times(groups).seconds["busy"].get(process.pid, 0) < 0.15:
            time.sleep(0.01)
        before = machine.cpu_times(groups)
        assert before.seconds["gone"] == {}
        while (used := machine.cpu_times(groups).since(before)["busy"]) < 0.01:
            time.sleep(0.01)
        assert 0.01 <= used < 1
        assert process.pid in machine.descendants(os.getpid())
        assert machine.command_line(process.pid).startswith(sys.executable)
        assert machine.memory([process.pid]) > 1_000_000
        process.communicate(b"\n")

    after = machine.cpu_times(groups)
    assert not after.has_all_of(before)
    assert machine.command_line(process.pid) == ""
    assert machine.memory([process.pid]) == 0
