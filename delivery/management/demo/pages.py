"""Format what the demo prints, as plain text in 80 columns."""

from collections.abc import Mapping
from pathlib import Path

from delivery.management.base import counted
from delivery.management.demo.numbers import Checked, Counts
from delivery.management.demo.stage import CHANNEL, CONSUMERS, LOGIN, MEMBER, Stage

WIDTH = 80
RULE = "─" * WIDTH
HEAD = (
    f"   time accepted    /s  {''.join(f'{name:>14}' for name in CONSUMERS)}\n"
    f"{'delivered/waiting/dead of each consumer':>{WIDTH}}"
)
REPEAT_HEAD = 20
"""Lines until the header is printed again."""


def banner(stage: Stage, rate: float) -> str:
    """Return URLs, logins, how to publish, and the consumers."""
    url = stage.web.url
    consumers = "\n".join(f"   {name:<11} {what}" for name, what in CONSUMERS.items())
    return f"""\
{RULE}
 Hookstation is running.

 Console    {url}/admin/
            user {LOGIN}, password {stage.password}
 Portal     {url}/portal/   (what the shop's own team sees)
            user {MEMBER}, password {stage.member_password}
 API docs   {url}/api/docs/
 Publish    curl {url}/api/v1/channels/{CHANNEL}/messages \\
              -H "Authorization: Bearer $(cat {_short(stage.key_file)})" \\
              -H "Content-Type: application/json" -d '{{"hello": "world"}}'

 A shop publishes {rate:g} messages per second on channel {CHANNEL}. Its consumers:
{consumers}

 Ctrl-C stops everything. Data and keys stay in {_short(stage.folder)}
{RULE}"""


def line(seconds: float, accepted: int, rate: float, counts: Mapping[str, Counts]) -> str:
    """Return a line with the present figures."""
    cells = "".join(
        f"{f'{count.delivered}/{count.waiting}/{count.dead}':>14}" for count in counts.values()
    )
    return f"{clock(seconds):>7} {accepted:>8,} {rate:>5.1f}  {cells}"


def event(seconds: float, sentence: str, detail: str = "") -> str:
    """Return an event, to be printed between the lines."""
    text = f"{clock(seconds):>7} * {sentence}"
    return f"{text}\n      {detail}" if detail else text


def summary(
    seconds: float,
    accepted: int,
    repeats: int,
    counts: Mapping[str, Counts],
    latencies: list[float],
    checked: Checked,
) -> str:
    """Return a summary of the run."""
    total = sum((count.delivered for count in counts.values()), 0)
    waiting = sum((count.waiting for count in counts.values()), 0)
    dead = {name: count.dead for name, count in counts.items() if count.dead}
    took = (
        f", median {timed(latencies[len(latencies) // 2])} from accepted to delivered"
        if latencies
        else ""
    )
    where = f" ({', '.join(dead)})" if dead else ""
    forged = f", {checked.invalid:,} refused" if checked.invalid else ""
    rows = [
        (
            "accepted",
            accepted,
            f"messages of the shop in {clock(seconds)}, stored before the response",
        ),
        ("repeated", repeats, "repeats recognised by their idempotency key"),
        ("delivered", total, f"deliveries{took}"),
        ("waiting", waiting, "deliveries that continue at the next start"),
        ("dead", sum(dead.values()), f"letters, to inspect and replay{where}"),
        ("signed", checked.valid, f"of {counted(checked.requests, 'request')}{forged}"),
    ]
    return "\n".join([RULE, *(f"{name:>10} {number:>9,}  {note}" for name, number, note in rows)])


def clock(seconds: float) -> str:
    """Format a time as ``1:05``, ``1:00:05``."""
    minutes, rest = divmod(int(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{rest:02}" if hours else f"{minutes}:{rest:02}"


def timed(seconds: float) -> str:
    """Format a duration as ``12 ms``, ``2.1 s``."""
    return f"{seconds * 1000:.0f} ms" if seconds < 1 else f"{seconds:.1f} s"


def _short(path: Path) -> str:
    """Return the path relative to the working directory, if it is below."""
    here = Path.cwd()
    return str(path.relative_to(here)) if path.is_relative_to(here) else str(path)
