"""Settings of the test-suite: the product's own, with an environment that tests need."""

import os
import tempfile

os.environ.setdefault("SECRET_KEY", "for-tests-only-" + "0123456789" * 5)
os.environ.setdefault("HOOKSTATION_DATA_DIR", tempfile.mkdtemp(prefix="hookstation-tests-"))
os.environ.setdefault("HOOKSTATION_ALLOWED_TARGETS", "127.0.0.0/8,::1/128")
os.environ.setdefault("HOOKSTATION_BREAKER_FAILURES", "1000")

from broker_site.settings import *  # noqa: E402, F403
