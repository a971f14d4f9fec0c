"""A broker for the packages' own tests, like that of the tests of clients.

They mostly wait, and here another xdist worker runs them meanwhile.
"""

from tests.e2e.clients.conftest import broker, channel, environment, hooks

__all__ = ["broker", "channel", "environment", "hooks"]
