"""A shop's tasks on Celery; only the import differs between `before.py` and `after.py`."""

import time
from datetime import UTC, datetime, timedelta
from pathlib import Path

from hookstation_client.celery import Celery, chain, chord, group, schedules

app = Celery("shop", broker="redis://127.0.0.1:6379/0", backend="redis://127.0.0.1:6379/1")
app.conf.update(
    timezone="UTC",
    broker_connection_retry_on_startup=True,
    broker_transport_options={"visibility_timeout": 10},
    task_acks_late=True,
    task_reject_on_worker_lost=True,
    task_routes={"shop.invoice": {"queue": "slow"}},
    beat_schedule={
        "tick": {
            "task": "shop.note",
            "schedule": timedelta(seconds=1),
            "args": ["ticks", "tick"],
        },
        "night": {
            "task": "shop.add",
            "schedule": schedules.crontab(hour=3, minute=30, day_of_week="mon-fri"),
            "args": [1, 2],
        },
    },
)


class OutOfStock(Exception):
    """The warehouse has none left."""


@app.task(name="shop.add")
def add(x: int, y: int) -> int:
    return x + y


@app.task(name="shop.total")
def total(numbers: list[int]) -> int:
    return sum(numbers)


@app.task(name="shop.note", ignore_result=True)
def note(file: str, line: str) -> None:
    """Append a line to a file."""
    with Path(file).open("a") as to:
        to.write(f"{line}\n")


@app.task(name="shop.reserve")
def reserve(item: str) -> None:
    raise OutOfStock(item)


@app.task(name="shop.fetch", bind=True, max_retries=3, default_retry_delay=0)
def fetch(self, failures: int) -> int:
    """Fail ``failures`` times; return the number of retries."""
    if self.request.retries < failures:
        raise self.retry(exc=OutOfStock("fetch"))
    return self.request.retries


@app.task(
    name="shop.charge",
    bind=True,
    autoretry_for=(ConnectionError,),
    retry_backoff=True,
    retry_backoff_max=1,
    retry_jitter=True,
    max_retries=2,
)
def charge(self, failures: int) -> int:
    if self.request.retries < failures:
        raise ConnectionError("the bank does not answer")
    return self.request.retries


@app.task(name="shop.invoice", bind=True)
def invoice(self, number: int) -> dict:
    return {"number": number, "queue": self.request.delivery_info["routing_key"]}


@app.task(name="shop.whoami", bind=True)
def whoami(self, *args: int, **kwargs: int) -> dict:
    about = self.request
    return {"id": about.id, "args": list(about.args), "kwargs": about.kwargs, "task": self.name}


@app.task(name="shop.apologise")
def apologise(request, error, traceback) -> None:
    note(request.args[0], f"{request.id} {error!r}")


@app.task(name="shop.break_down")
def break_down(file: str) -> None:
    raise OutOfStock(file)


@app.task(name="shop.now")
def now() -> str:
    return datetime.now(UTC).isoformat()


@app.task(name="shop.slow")
def slow(file: str, number: int, seconds: float) -> int:
    note(file, f"begun {number}")
    time.sleep(seconds)
    note(file, f"done {number}")
    return number


def month_end(numbers: list[int]):
    """Double each number, sum the results, add 1."""
    return chain(chord(group(add.s(n, n) for n in numbers), total.s()), add.s(1))
