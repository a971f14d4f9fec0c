"""The benchmark measures CPU time and memory of processes."""

import os
import subprocess
import sys
import time

from bench import cpu

BUSY = (
    "import time; end = time.process_time() + 0.2\nwhile time.process_time() < end: pass\ninput()"
)


def test_the_time_of_another_process_is_counted() -> None:
    with subprocess.Popen([sys.executable, "-c", BUSY], stdin=subprocess.PIPE) as process:
        groups = {"busy": [process.pid], "gone": [2**22 - 1]}
        while cpu.look(groups).seconds["busy"].get(process.pid, 0) < 0.15:
            time.sleep(0.01)
        before = cpu.look(groups)
        assert before.seconds["gone"] == {}
        while (used := cpu.look(groups).since(before)["busy"]) < 0.01:
            time.sleep(0.01)
        assert 0.01 <= used < 1
        assert process.pid in cpu.descendants(os.getpid())
        assert cpu.title(process.pid).startswith(sys.executable)
        assert cpu.memory([process.pid]) > 1_000_000
        process.communicate(b"\n")

    after = cpu.look(groups)
    assert not after.has_all_of(before)
    assert cpu.title(process.pid) == ""
    assert cpu.memory([process.pid]) == 0
