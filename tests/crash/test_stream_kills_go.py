"""Kill either side of a gRPC stream of the Go client: no message is lost."""

import pytest

from tests.crash import test_stream_kills as kills
from tests.crash.test_stream_kills import channel, started
from tests.support import toolchains

pytestmark = pytest.mark.e2e

__all__ = ["channel", "started"]

test_kill_9_of_the_server_loses_nothing = kills.test_kill_9_of_the_server_loses_nothing
test_kill_9_of_the_worker_loses_nothing = kills.test_kill_9_of_the_worker_loses_nothing
test_a_stop_and_a_start_lose_nothing = kills.test_a_stop_and_a_start_of_the_broker_lose_nothing

OPTIONS = '-channel "$1" -handled "$2" -name "$3" ${4:+-resume} -pause 5ms -lease 3s'


@pytest.fixture(scope="module")
def program() -> list[str]:
    """The command of the worker, without its arguments."""
    try:
        worker = toolchains.build_go_grpc() / "worker"
    except toolchains.Missing as missing:
        pytest.skip(str(missing))
    return ["sh", "-c", f'exec "$0" {OPTIONS}', str(worker)]
