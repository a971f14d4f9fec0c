"""The forecast for a periodic history with a planted peak equals a calculation in plain Python."""

import random
from collections import defaultdict
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from statistics import median
from typing import Any

import pytest

from channels_app.models import Channel, Consumer, Message
from delivery.models import Counter, Delivery, ForecastFrame, Traffic
from pipeline.settings import Settings
from tests.pipeline.conftest import RunJob, count_until
from tests.pipeline.month import noon
from tests.pipeline.moving import move
from tests.support.counts import key_at
from tests.support.factories import ChannelFactory, ConsumerFactory

pytestmark = pytest.mark.django_db(transaction=True)

HOUR, WEEK = timedelta(hours=1), timedelta(days=7)
WEEKS = 4
PEAK = 30
"""Hours from the start of the forecast to the peak; the peak recurs each week."""
PEAK_SIZE = 40
BODY = 100


class House:
    """A channel with two consumers, one of which wants only `a.*`, and a channel with one."""

    def __init__(self) -> None:
        self.start = noon()
        self.busy, self.calm = (ChannelFactory.create(slug=name) for name in ("busy", "calm"))
        self.consumers = [
            ConsumerFactory.create(channel=self.busy, event_types=["a.*"]),
            ConsumerFactory.create(channel=self.busy),
            ConsumerFactory.create(channel=self.calm),
            ConsumerFactory.create(channel=self.calm, state="paused"),
            ConsumerFactory.create(channel=self.calm, state="retired"),
        ]
        self.rows: list[Message] = []

    def copies(self, message: Message) -> int:
        """How many consumers would get the message now."""
        if message.channel_id == self.calm.pk:
            return 1
        return 2 if message.event_type.startswith("a.") else 1

    def put(self, channel: Channel, at: datetime, number: int, **more: Any) -> None:
        """Add ``number`` messages that are due ``at``."""
        for _ in range(number):
            accepted_at = more.get("accepted_at", at)
            self.rows.append(
                Message(
                    id=key_at(accepted_at),
                    channel=channel,
                    event_type="a.b" if len(self.rows) % 3 else "c.d",
                    body_bytes=BODY,
                    due_at=at,
                    **{"state": "dispatched", "accepted_at": accepted_at} | more,
                )
            )

    def fill(self, weeks: int = WEEKS) -> None:
        """Add weeks of history that vary at random, with a peak at the same hour of each week."""
        dice = random.Random(6)
        for number in range(1, weeks * 168 + 1):
            at = self.start - HOUR * number + timedelta(minutes=7)
            count = dice.randrange(3) if 6 <= at.hour < 18 else 0
            self.put(self.busy, at, count)
            if number % 5 == 0:
                self.put(self.calm, at, 1)
            if (number + PEAK) % 168 == 0:
                self.put(self.busy, at, PEAK_SIZE)
        self.store()

    def store(self) -> None:
        """Store all added messages."""
        Message.objects.bulk_create(self.rows)


@pytest.fixture
def house(chosen: Settings) -> House:
    made = House()
    count_until(chosen, made.start)
    return made


def by_hand(house: House, weeks: int = WEEKS) -> dict[tuple[int, datetime], list[float]]:
    """Messages, deliveries and bytes of each forecast hour by channel, in plain Python."""
    sums: dict[tuple[int, datetime], list[int]] = defaultdict(lambda: [0, 0, 0])
    for row in house.rows:
        if row.state == "dispatched":
            amounts = sums[row.channel_id, row.due_at.replace(minute=0, second=0, microsecond=0)]
            copies = house.copies(row)
            for place, amount in enumerate((1, copies, copies * row.body_bytes)):
                amounts[place] += amount
    found = {}
    for channel in (house.busy, house.calm):
        first = min(at for key, at in sums if key == channel.pk)
        for ahead in range(168):
            at = house.start + HOUR * ahead
            samples = [
                sums.get((channel.pk, at - WEEK * number), [0, 0, 0])
                for number in range(1, weeks + 1)
                if at - WEEK * number >= first
            ]
            found[channel.pk, at] = [median(column) for column in zip(*samples, strict=True)]
    return found


def frames(channel_id: int = 0, span_s: int = 3600) -> Iterator[ForecastFrame]:
    some = ForecastFrame.objects.filter(channel_id=channel_id, span_s=span_s)
    return some.order_by("begins_at").iterator()


def amounts(frame: ForecastFrame) -> list[float]:
    return [frame.messages, frame.deliveries, frame.bytes]


def test_it_is_the_median_of_the_same_hour_and_the_peak_and_the_error_are_found(
    run_job: RunJob, house: House, chosen: Settings
) -> None:
    house.fill(WEEKS + 1)

    result = run_job("forecast", backtest=True)

    assert result["from"] == house.start.isoformat()
    wanted = by_hand(house)
    whole = list(frames())
    assert len(whole) == 168
    for frame in whole:
        parts = [wanted[channel.pk, frame.begins_at] for channel in (house.busy, house.calm)]
        assert amounts(frame) == [sum(column) for column in zip(*parts, strict=True)]
    for channel in (house.busy, house.calm):
        known = {frame.begins_at: amounts(frame) for frame in frames(channel.pk)}
        for ahead in range(168):
            at = house.start + HOUR * ahead
            assert known.get(at, [0, 0, 0]) == wanted[channel.pk, at]
    (hot,) = [frame for frame in whole if frame.is_hot]
    assert hot.begins_at == house.start + HOUR * PEAK
    assert hot.messages >= PEAK_SIZE
    assert hot.low <= hot.messages <= hot.high
    assert (hot.samples, hot.basis) == (WEEKS, "weeks")
    assert result["hot_hours"] == 1
    assert (result["rate_per_second"], result["rate_source"]) == (600, "docs/performance.md")
    the_error_is_that_of_plain_python(house, result)

    # The same with most weeks in the lake.
    fields = ("channel_id", "begins_at", "messages", "deliveries", "bytes", "low", "high")
    before = sorted(ForecastFrame.objects.values_list(*fields))
    move(chosen, "messages", house.start - WEEK)
    assert Message.objects.count() < len(house.rows) / 2
    assert run_job("forecast", backtest=True) == result
    assert sorted(ForecastFrame.objects.values_list(*fields)) == before


def the_error_is_that_of_plain_python(house: House, result: dict[str, Any]) -> None:
    """Forecast the last week by hand from the weeks before it."""
    past = House.__new__(House)
    past.__dict__.update(house.__dict__)
    past.start = house.start - WEEK
    came: dict[datetime, int] = defaultdict(int)
    for row in house.rows:
        came[row.due_at.replace(minute=0, second=0, microsecond=0)] += 1
    past.rows = [row for row in house.rows if row.due_at < past.start]
    said: dict[datetime, float] = defaultdict(float)
    for (_, at), (messages, _, _) in by_hand(past).items():
        said[at] += messages
    hours = [past.start + HOUR * ahead for ahead in range(168)]
    off = [abs(came[at] - said[at]) for at in hours]
    shares = [miss / came[at] for miss, at in zip(off, hours, strict=True) if came[at]]
    assert result["error_percent"] == round(100 * sum(off) / sum(came[at] for at in hours), 1)
    assert result["mean_error_percent"] == round(100 * sum(shares) / len(shares), 1)
    assert 0 < result["error_percent"] < 100


def test_what_is_scheduled_and_retried_stands_in_its_minute(run_job: RunJob, house: House) -> None:
    house.fill(1)
    at = house.start + HOUR * 50 + timedelta(minutes=20)
    soon = {"state": "accepted", "accepted_at": house.start - HOUR}
    house.rows = []
    house.put(house.calm, at, 70, **soon)
    house.put(house.calm, house.start + HOUR * 400, 9, **soon)
    house.put(house.calm, at, 5, **{**soon, "state": "cancelled"})
    house.store()
    waiting = retries(house.consumers[1], at, 8) + retries(house.consumers[3], at, 8)
    assert len(waiting) == 16

    result = run_job("forecast", rate=0.5)

    (minute,) = frames(span_s=60)
    assert (minute.begins_at, minute.scheduled, minute.retries) == (at, 70, 8)
    assert (minute.deliveries, minute.bytes) == (78, 7800)
    assert minute.is_hot
    assert [frame.scheduled for frame in frames(house.calm.pk, 60)] == [70]
    assert [frame.retries for frame in frames(house.busy.pk, 60)] == [8]
    hour = ForecastFrame.objects.get(channel_id=0, span_s=3600, begins_at=house.start + HOUR * 50)
    assert (hour.scheduled, hour.retries) == (70, 8)
    assert hour.messages >= 70
    assert hour.is_hot
    # 78 in one minute beside the usual load, at a rate of one per two seconds and pump.
    assert hour.workers == minute.workers == 3
    assert (result["hot_minutes"], result["rate_source"]) == (1, "as asked for")


def test_with_little_history_it_says_what_it_stands_on(run_job: RunJob, house: House) -> None:
    for day in range(1, 4):
        house.put(house.busy, house.start - timedelta(days=day) + timedelta(minutes=3), 2 * day)
    house.store()

    run_job("forecast", hours=30)

    whole = list(frames())
    assert len(whole) == 30
    assert (whole[0].messages, whole[0].basis, whole[0].samples) == (4, "days", 3)
    assert (whole[24].messages, whole[24].basis) == (4, "days"), "its day before is to come"
    assert (whole[1].messages, whole[1].low, whole[1].high) == (0, 0, 0)


def test_without_messages_nothing_is_expected(run_job: RunJob) -> None:
    minute = datetime.now(UTC).replace(second=0, microsecond=0)
    Traffic.objects.create(span_s=60, begins_at=minute, delivered=60_000, failed=6000)

    result = run_job("forecast", backtest=True)

    assert (result["messages"], result["workers"], result["error_percent"]) == (0, 1, None)
    assert {frame.basis for frame in frames()} == {"nothing"}
    # A pump does what it was seen doing.
    assert result["rate_per_second"] == 1100
    assert result["rate_source"] == "the busiest minute of the last two days"


def retries(consumer: Consumer, at: datetime, number: int) -> list[Delivery]:
    """Make deliveries that failed and are retried ``at``."""
    accepted_at = at - timedelta(days=3)
    messages = Message.objects.bulk_create(
        Message(
            id=key_at(accepted_at),
            channel_id=consumer.channel_id,
            state="cancelled",
            body_bytes=BODY,
            accepted_at=accepted_at,
            due_at=accepted_at,
        )
        for _ in range(number)
    )
    Counter.add({(consumer.pk, "queued"): number}, 0)
    return Delivery.objects.bulk_create(
        Delivery(
            id=message.id,
            message=message,
            consumer=consumer,
            channel_id=consumer.channel_id,
            accepted_at=accepted_at,
            due_at=at,
            attempt_count=1,
        )
        for message in messages
    )
