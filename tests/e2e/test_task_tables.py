"""A running worker and foreign rows in the task tables."""

from pathlib import Path

import pytest

from tests.support.broker import running, wait_until

pytestmark = pytest.mark.e2e

PLANT = """
from django_q.models import OrmQ
from tests.support.hostile import Bomb, signed_by_django_q2
from django.conf import settings
from pathlib import Path
witness = Path({witness!r})
package = {{"id": "1" * 32, "name": "theirs", "func": "os.system", "kwargs": {{}}}}
package["args"] = ("touch " + {witness!r},)
for value in (package, Bomb(witness)):
    OrmQ.objects.create(
        key="hookstation",
        payload=signed_by_django_q2(value, settings.SECRET_KEY),
        lock="2020-01-01 00:00:00+00:00",
    )
"""
LEFT = "from django_q.models import OrmQ; print('left:', OrmQ.objects.count())"


@pytest.mark.trap("code in a row of the task tables")
def test_a_worker_runs_nothing_that_is_not_registered(tmp_path: Path) -> None:
    witness = tmp_path / "ran"
    with running(tmp_path) as broker:
        broker.manage("shell", "--no-imports", "-c", PLANT.format(witness=str(witness)))
        wait_until(lambda: broker.log().count("a background task was refused") >= 2, 60, "no word")
        wait_until(
            lambda: "left: 0" in broker.manage("shell", "--no-imports", "-c", LEFT), 60, "rows stay"
        )
        assert not witness.exists()
