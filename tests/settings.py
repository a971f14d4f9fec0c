"""The product's settings, with the environment that tests need."""

import atexit
import os
import shutil
import tempfile

os.environ.setdefault("SECRET_KEY", "for-tests-only-" + "0123456789" * 5)
if "HOOKSTATION_DATA_DIR" not in os.environ:
    # One folder for all processes of the suite; the process that made it removes it.
    os.environ["HOOKSTATION_DATA_DIR"] = tempfile.mkdtemp(prefix="hookstation-tests-")
    atexit.register(shutil.rmtree, os.environ["HOOKSTATION_DATA_DIR"], ignore_errors=True)
os.environ.setdefault("HOOKSTATION_ALLOWED_TARGETS", "127.0.0.0/8,::1/128")
os.environ.setdefault("HOOKSTATION_BREAKER_FAILURES", "1000")

from broker_site.settings import *  # noqa: F403

# Tests need no slow password hash.
PASSWORD_HASHERS = ["django.contrib.auth.hashers.MD5PasswordHasher"]
# Otherwise each test client lists all static files before its first request.
WHITENOISE_AUTOREFRESH = True

# A reopened connection would lack what a test has set on it, such as a limit or a read-only mode.
DATABASES["default"]["CONN_MAX_AGE"] = None  # noqa: F405
