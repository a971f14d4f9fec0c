"""Settings of the example project."""

import environ

env = environ.Env()
SECRET_KEY = env("SECRET_KEY", default="an example")
USE_TZ = True
INSTALLED_APPS = ["hookstation_client.django", "shop"]
DATABASES = {"default": env.db("DATABASE_URL", default="sqlite:///shop.sqlite3")}
DEFAULT_AUTO_FIELD = "django.db.models.BigAutoField"
# When off, commits do not publish: `manage.py relay_outbox` does.
HOOKSTATION_RELAY_ON_COMMIT = env.bool("RELAY_ON_COMMIT", default=True)
