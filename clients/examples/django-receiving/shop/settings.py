"""Settings of the example project."""

import os

SECRET_KEY = os.environ.get("SECRET_KEY", "an example")
USE_TZ = True
ALLOWED_HOSTS = ["127.0.0.1", "localhost"]
INSTALLED_APPS = ["shop"]
# `shop.before` or `shop.after`
ROOT_URLCONF = os.environ.get("SHOP_URLS", "shop.after")
DATABASES = {
    "default": {
        "ENGINE": "django.db.backends.sqlite3",
        "NAME": os.environ.get("SHOP_DB", "shop.sqlite3"),
        # Concurrent writers wait for each other instead of failing.
        "OPTIONS": {"transaction_mode": "IMMEDIATE", "timeout": 30},
    }
}
DEFAULT_AUTO_FIELD = "django.db.models.BigAutoField"
