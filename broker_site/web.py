"""The WSGI application as the workers of granian load it."""

import signal

# A worker is a fork that keeps its parent's handlers until the application is loaded, and those
# swallow SIGTERM: a stop during the second that loading takes would wait until SIGKILL. Until the
# worker installs its own, a stop shall simply end it.
for number in (signal.SIGINT, signal.SIGTERM):
    signal.signal(number, signal.SIG_DFL)

from broker_site.wsgi import application  # noqa: E402 - the reset has to come before the loading
from channels_app.garbage import spare_what_is_loaded  # noqa: E402

spare_what_is_loaded()

__all__ = ["application"]
