"""However many consumers hang, one that answers gets its messages."""

import time
from dataclasses import replace

import pytest

from delivery import conf as conf_module
from delivery.models import Delivery
from delivery.runtime import allotment
from delivery.runtime import pump as pump_module
from tests.support import pumping
from tests.support.pumping import make_channel, make_consumer, publish, pump_rounds, pump_until
from tests.support.receiver import Receiver

pytestmark = pytest.mark.django_db(transaction=True)

REQUESTS = 32


@pytest.fixture(autouse=True)
def _few_requests(monkeypatch: pytest.MonkeyPatch) -> None:
    few = replace(conf_module.conf(), pump_in_flight=REQUESTS)
    for module in (allotment, pump_module):
        monkeypatch.setattr(module, "conf", lambda: few)


@pytest.mark.trap("one slow consumer holds up all")
def test_consumers_that_hang_do_not_take_the_last_requests(receiver: Receiver) -> None:
    broken, healthy = make_channel(), make_channel()
    for n in range(6):
        make_consumer(broken, receiver.url(f"/hang?n={n}"))
    make_consumer(healthy, receiver.url("/ok"))
    publish(broken, *[b"x"] * 20)
    with pumping.pumping() as pump:
        # All that they can get: what is kept for others goes out one by one.
        pump_until(pump, lambda: len(pump.open) >= REQUESTS - REQUESTS // 8)
        pump_rounds(pump, 20)
        pump.next_poll = pump.membership.next_beat = time.monotonic() + 60.0
        assert pump._patience() > 1.0, "it spins, although nobody may take anything"
        publish(healthy, *[b"y"] * 20)
        pump_until(pump, lambda: Delivery.objects.filter(state="delivered").count() == 20)

        assert REQUESTS - REQUESTS // 8 <= len(pump.open) < REQUESTS


def test_a_consumer_that_hangs_alone_may_have_all_that_is_its_own(receiver: Receiver) -> None:
    channel = make_channel()
    make_consumer(channel, receiver.url("/hang"), max_in_flight=20)
    publish(channel, *[b"x"] * 30)
    with pumping.pumping() as pump:
        pump_until(pump, lambda: len(pump.open) == 20)
