"""A standalone Spark cluster on this machine: a master and two workers, each a process."""

import os
import signal
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

import pyspark

from pipeline.execution import session
from tests.support import ports

START_S = 120
SPARK = Path(pyspark.__file__).parent
LOOPBACK = "127.0.0.1"
INHERITED = ("PATH", "HOME", "JAVA_HOME", "JDK_JAVA_OPTIONS")


@dataclass(frozen=True, slots=True)
class Cluster:
    """What a job needs to run on the cluster."""

    master: str
    environment: dict[str, str]
    """The environment of the program that starts a job."""
    folder: Path
    """The logs of all processes, and the workers' own folders."""

    def working(self) -> list[str]:
        """The workers that have started an executor; a slow machine starts several."""
        logs = self.folder.glob("worker-*.log")
        return [log.stem for log in logs if "Asked to launch executor" in log.read_text()]


@contextmanager
def cluster(folder: Path, workers: int = 2) -> Iterator[Cluster]:
    """Run a cluster inside the block; end all its processes afterwards."""
    session.ensure_java(folder)
    environment = {
        # Not our whole environment: executors must get their settings from the job.
        **{name: os.environ[name] for name in INHERITED if name in os.environ},
        "SPARK_HOME": str(SPARK),
        "SPARK_LOCAL_IP": LOOPBACK,
        "SPARK_DAEMON_MEMORY": "256m",
        "SPARK_NO_DAEMONIZE": "1",
    }
    started: list[subprocess.Popen[bytes]] = []
    try:
        port = ports.claim()
        master = f"spark://{LOOPBACK}:{port}"
        options = ["--host", LOOPBACK, "--port", str(port), "--webui-port", "0"]
        started.append(_daemon(folder, environment, "master", "master.Master", *options))
        _await(folder / "master.log", "I have been elected leader", started)
        for number in range(workers):
            name = f"worker-{number}"
            options = ["--host", LOOPBACK, "--webui-port", "0", "--cores", "1", "--memory", "700m"]
            options += ["--work-dir", str(folder / name), master]
            started.append(_daemon(folder, environment, name, "worker.Worker", *options))
        for number in range(workers):
            _await(folder / f"worker-{number}.log", "Successfully registered", started)
        yield Cluster(master, driver(), folder)
    finally:
        for process in reversed(started):
            _end(process)


def driver() -> dict[str, str]:
    """The environment for small executors, on the loopback interface only."""
    options = {
        "spark.executor.memory": "512m",
        "spark.executor.cores": "1",
        "spark.driver.host": LOOPBACK,
        "spark.driver.bindAddress": LOOPBACK,
    }
    words = [os.environ["SPARK_SUBMIT_OPTS"], *(f"-D{key}={one}" for key, one in options.items())]
    return {"SPARK_SUBMIT_OPTS": " ".join(words), "SPARK_LOCAL_IP": LOOPBACK}


def _daemon(
    folder: Path, environment: dict[str, str], name: str, program: str, *options: str
) -> subprocess.Popen[bytes]:
    work = folder / name
    work.mkdir()
    with (folder / f"{name}.log").open("wb") as log:
        return subprocess.Popen(
            [SPARK / "bin" / "spark-class", f"org.apache.spark.deploy.{program}", *options],
            cwd=work,
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            start_new_session=True,
        )


def _end(process: subprocess.Popen[bytes]) -> None:
    """End the process group of a process."""
    for number in (signal.SIGTERM, signal.SIGKILL):
        with suppress(ProcessLookupError):
            os.killpg(process.pid, number)
        with suppress(subprocess.TimeoutExpired):
            process.wait(20)


def _await(log: Path, text: str, started: list[subprocess.Popen[bytes]]) -> None:
    end = time.monotonic() + START_S
    while text not in log.read_text(errors="replace"):
        if time.monotonic() > end or any(process.poll() is not None for process in started):
            raise AssertionError(log.read_text(errors="replace")[-3000:])
        time.sleep(0.2)
