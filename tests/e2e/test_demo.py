"""``manage.py demo`` as a user runs it: it starts, reports, and leaves no process behind."""

import os
import re
import signal
import socket
import stat
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from queue import Empty, Queue
from threading import Thread

import pytest
import requests
from django.core.management import CommandError, call_command

from channels_app.core import ids
from delivery.management.demo import pages, shop, stage
from delivery.management.demo.numbers import Counts
from tests.support import ports
from tests.support.broker import lives

ROOT = Path(__file__).resolve().parents[2]
LIVE = re.compile(r" +\d+:\d\d +([\d,]+) +[\d.]+ +" + " +".join([r"(\d+)/(-?\d+)/(\d+)"] * 4))


class Demo:
    """A running demo and its output."""

    def __init__(self, folder: Path, *arguments: str) -> None:
        self.folder = folder
        self.port = ports.claim(2)
        self.lines: list[str] = []
        failpoint = folder.with_name("failpoint")
        failpoint.write_text("after_send")
        self.process = subprocess.Popen(
            [sys.executable, "manage.py", "demo", "--port", str(self.port), *arguments],
            cwd=ROOT,
            # A machine without any setup, or with another broker's settings.
            env={
                "PATH": os.environ["PATH"],
                "HOOKSTATION_DATA_DIR": str(folder),
                "DATABASE_URL": "mysql://nobody@127.0.0.1:1/nothing",
                "HOOKSTATION_FAILPOINT": str(failpoint),
            },
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            start_new_session=True,
        )
        self._queue: Queue[str] = Queue()
        self._reader = Thread(target=self._read, daemon=True)
        self._reader.start()

    def _read(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            self._queue.put(line.rstrip("\n"))

    def wait_for(self, pattern: str, seconds: float = 300) -> str:
        """Return the next line that matches the pattern."""
        deadline = time.monotonic() + seconds
        while True:
            try:
                line = self._queue.get(timeout=max(0.0, deadline - time.monotonic()))
            except Empty:
                raise AssertionError(f"no {pattern!r} in {seconds} s:\n{self.text}") from None
            self.lines.append(line)
            if re.search(pattern, line):
                return line

    def finish(self, seconds: float = 300) -> str:
        """Wait until it ends; return all its output."""
        self.process.wait(seconds)
        self._reader.join(5)
        while not self._queue.empty():
            self.lines.append(self._queue.get())
        return self.text

    @property
    def text(self) -> str:
        return "\n".join(self.lines)

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"


@pytest.fixture
def start() -> Iterator[Callable[..., Demo]]:
    demos: list[Demo] = []

    def begin(folder: Path, *arguments: str) -> Demo:
        demos.append(Demo(folder, *arguments))
        return demos[-1]

    yield begin
    for demo in demos:
        everybody = descendants(demo.process.pid)
        demo.process.kill()
        with demo.process:
            demo.process.wait()
        for pid in everybody:
            if lives(pid):
                os.kill(pid, signal.SIGKILL)


def enter(url: str, user: str, password: str) -> str:
    """Sign in on the way to ``url``; return the URL of the page that follows."""
    with requests.Session() as browser:
        page = browser.get(url, timeout=60)
        (token,) = re.findall(r'name="csrfmiddlewaretoken" value="(\w+)"', page.text)[:1]
        (into,) = re.findall(r'name="next" value="([^"]+)"', page.text)
        form = {"login": user, "password": password, "csrfmiddlewaretoken": token, "next": into}
        entered = browser.post(page.url, data=form, headers={"Referer": page.url}, timeout=60)
        assert "sessionid" in browser.cookies, entered.text[:500]
        return entered.url


def processes() -> dict[int, int]:
    """Parent process ids of all running processes, by process id."""
    found = {}
    for path in Path("/proc").glob("[0-9]*/stat"):
        try:
            fields = path.read_text().rpartition(")")[2].split()
        except (FileNotFoundError, ProcessLookupError):
            continue
        if fields[0] not in {"Z", "X"}:
            found[int(path.parent.name)] = int(fields[1])
    return found


def descendants(pid: int) -> set[int]:
    parents = processes()
    found, frontier = set(), {pid}
    while frontier:
        frontier = {child for child, parent in parents.items() if parent in frontier}
        found |= frontier
    return found


def wait_until(true: Callable[[], object], seconds: float = 120.0) -> None:
    deadline = time.monotonic() + seconds
    while not true():
        assert time.monotonic() < deadline, "waited in vain"
        time.sleep(0.05)


@pytest.mark.trap("a replay that starts late or never")
@pytest.mark.e2e
def test_demo_prints_working_commands_and_ctrl_c_ends_it(
    start: Callable[..., Demo], tmp_path: Path
) -> None:
    demo = start(tmp_path)
    demo.wait_for("Ctrl-C stops")
    everybody = descendants(demo.process.pid)
    check_commands(demo)
    replay_dead_letter(demo)

    # A second demo on the same data is refused and changes nothing.
    second = start(tmp_path)
    assert "Error: Another demo is running" in second.finish()
    assert second.process.returncode == 1

    demo.process.send_signal(signal.SIGINT)
    said = demo.finish()
    assert demo.process.returncode == 0, said
    assert "messages of the shop in 0:" in said
    assert "keeps trying" not in said
    assert not [pid for pid in everybody if lives(pid)]


@pytest.mark.e2e
def test_a_killed_demo_leaves_no_process_and_its_restart_reports_progress_to_its_end(
    start: Callable[..., Demo], tmp_path: Path
) -> None:
    killed = start(tmp_path)
    killed.wait_for("healthy: first message delivered")
    everybody = descendants(killed.process.pid)
    assert len(everybody) >= 5  # reaper, web, worker and its child, receiver
    files = tmp_path / "demo"
    kept = {path.name: path.read_text() for path in files.iterdir() if path.is_file()
            and path.suffix != ".sqlite3" and "sqlite3-" not in path.name
            and path.stat().st_mode & 0o077 == 0}  # fmt: skip
    assert {"demo.env", "password", "member.password", "shop.key", "healthy.secret"} <= kept.keys()

    killed.process.kill()

    wait_until(lambda: not [pid for pid in everybody if lives(pid)])

    again = start(tmp_path, "--seconds", "20", "--rate", "8")
    said = again.finish()
    assert again.process.returncode == 0, said
    check_report(again.lines, tmp_path)
    assert {name: (files / name).read_text() for name in kept} == kept


def check_commands(demo: Demo) -> None:
    """Check the curl command, the console with its login, and the API documentation."""
    (command,) = re.findall(r"curl .*?\\\n.*?\\\n.*?'{.*?}'", demo.text, re.DOTALL)
    done = subprocess.run(["/bin/sh", "-c", command], capture_output=True, text=True, check=True)
    assert '"id":"msg_' in done.stdout.replace(" ", "")
    assert requests.get(f"{demo.url}/api/docs/", timeout=60).status_code == 200
    operator, member = re.findall(r"user (\w+), password (\S+)", demo.text)
    assert enter(f"{demo.url}/admin/", *operator) == f"{demo.url}/admin/"
    assert enter(f"{demo.url}/portal/", *member) == f"{demo.url}/portal/shop/"


def replay_dead_letter(demo: Demo) -> None:
    """Replay the dead letter that the demo names."""
    demo.wait_for("failing: first dead letter after 3 attempts. Replay it at")
    (number,) = re.findall(r"/(\d+)/change/$", demo.wait_for("/change/$"))
    dead = f"{demo.url}/api/v1/deliveries/{ids.to_public(ids.DELIVERY, int(number))}"
    with requests.Session() as shop:
        key = (demo.folder / "demo" / "shop.key").read_text().strip()
        shop.headers["Authorization"] = f"Bearer {key}"
        assert shop.get(dead, timeout=60).json()["state"] == "Dead"
        assert shop.post(f"{dead}/replay", timeout=60).ok
        wait_until(lambda: shop.get(dead, timeout=60).json()["state"] == "Delivered")


def check_report(lines: list[str], folder: Path) -> None:
    """Check what a demo printed until it ended by itself."""
    said = "\n".join(lines)
    assert "healthy: first message delivered" in said
    assert "recovering: first message accepted after 2 failures" in said
    assert "failing: first dead letter after 3 attempts" in said
    assert "\x1b" not in said
    assert [line for line in lines if len(line) > 80 and str(folder) not in line] == []
    rows = [match for line in lines if (match := LIVE.fullmatch(line))]
    assert len(rows) >= 5
    accepted = [int(row[1].replace(",", "")) for row in rows]
    assert accepted == sorted(accepted)
    assert accepted[-1] >= 80
    total = {match[1]: int(match[2].replace(",", "")) for match in _summary(lines)}
    assert total["accepted"] >= accepted[-1]
    assert total["delivered"] > total["accepted"]  # several consumers
    assert total["dead"] >= 1
    # A request that got no answer in time is repeated as well.
    assert total["repeated"] >= total["accepted"] // 50
    (signed,) = re.findall(r"signed +([\d,]+)  of ([\d,]+) requests$", said, re.MULTILINE)
    assert signed[0] == signed[1] != "0"


def _summary(lines: list[str]) -> Iterator[re.Match[str]]:
    for line in lines:
        if match := re.match(r" +(accepted|repeated|delivered|waiting|dead) +([\d,]+)  ", line):
            yield match


# -- Without processes -----------------------------------------------------------------------------


def test_secret_files_are_readable_only_by_their_owner(tmp_path: Path) -> None:
    stage._write(tmp_path / "key", "text")

    assert stat.S_IMODE((tmp_path / "key").stat().st_mode) == 0o600


def test_a_busy_port_is_reported_with_a_remedy() -> None:
    with socket.socket() as busy:
        busy.bind(("127.0.0.1", 0))
        busy.listen()
        port = busy.getsockname()[1]

        with pytest.raises(CommandError, match=rf"in use.*--port {port + 1}"):
            stage.find_ports(port)


def test_an_unwritable_folder_is_reported(tmp_path: Path) -> None:
    (tmp_path / "data").write_text("a file")

    done = subprocess.run(
        [sys.executable, "manage.py", "demo"],
        cwd=ROOT,
        env={"PATH": os.environ["PATH"], "HOOKSTATION_DATA_DIR": str(tmp_path / "data")},
        capture_output=True,
        text=True,
        check=False,
    )

    assert done.returncode == 1
    assert done.stderr.startswith(f"Error: The demo cannot write to {tmp_path}/data/demo: ")


def test_an_invalid_rate_is_refused() -> None:
    with pytest.raises(CommandError, match=r"^--rate must be above 0 and at most 500\.$"):
        call_command("demo", rate=0)


def test_demo_lines_fit_80_columns_after_five_hours() -> None:
    counts = {name: Counts(90_000, 9_999, 90) for name in stage.CONSUMERS}

    assert len(pages.line(5 * 3600, 90_000, 5.0, counts)) == pages.WIDTH
    assert max(len(line) for line in pages.HEAD.splitlines()) <= pages.WIDTH


@pytest.mark.parametrize(
    ("seconds", "text"), [(5, "0:05"), (65, "1:05"), (3665, "1:01:05"), (90_000, "25:00:00")]
)
def test_demo_formats_durations(seconds: float, text: str) -> None:
    assert pages.clock(seconds) == text


def test_demo_orders_follow_their_lifecycle() -> None:
    story = shop.happen()
    kinds: dict[str, list[str]] = {}
    for _ in range(3000):
        event = next(story)
        kinds.setdefault(event.key.split(f"-{event.type}")[0], []).append(event.type)

    lived = {tuple(life) for name, life in kinds.items() if name.startswith("A-")}
    paid = ("order.created", "order.paid")
    assert lived == {
        ("order.created",),
        ("order.created", "order.cancelled"),
        paid,
        (*paid, "order.shipped"),
        (*paid, "order.refunded"),
    }
