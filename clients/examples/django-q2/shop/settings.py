"""Settings of the example project. The environment determines the service."""

import os

SECRET_KEY = os.environ.get("SECRET_KEY", "an example")
USE_TZ = True
INSTALLED_APPS = ["django_q", "shop"]
DATABASES = {
    "default": {
        "ENGINE": "django.db.backends.sqlite3",
        "NAME": os.environ.get("SHOP_DB", "shop.sqlite3"),
        "OPTIONS": {"transaction_mode": "IMMEDIATE", "timeout": 30},
    }
}
DEFAULT_AUTO_FIELD = "django.db.models.BigAutoField"
Q_CLUSTER = {
    "name": os.environ.get("QUEUE", "shop-letters"),
    "workers": 2,
    # Seconds in which a task must end, and seconds until another cluster receives it.
    "timeout": int(os.environ.get("TIMEOUT_S", "60")),
    "retry": int(os.environ.get("RETRY_S", "90")),
    # A failed task stays in the queue and is received again.
    "ack_failures": False,
    "bulk": 5,
    "sqs": {"aws_region": "us-east-1", "receive_message_wait_time_seconds": 5},
}
