"""Define Django's settings from the environment (broker_site/env.py)."""

import socket
import sys
from typing import Any
from urllib.parse import urlsplit

from environ import Env

from broker_site import __version__, env
from broker_site.console import unfold
from channels_app.core import program
from channels_app.database import dialects

ENVIRONMENT = env.read()
program.use(env.command())
VERSION = __version__
BASE_DIR = env.BASE_DIR
DATA_DIR = ENVIRONMENT.data_dir
DATA_DIR.mkdir(mode=0o700, parents=True, exist_ok=True)

DEBUG = ENVIRONMENT.debug
SECRET_KEY = ENVIRONMENT.secret_key
SECRET_KEY_FALLBACKS = list(ENVIRONMENT.secret_key_fallbacks)
PUBLIC_URL = ENVIRONMENT.public_url
_public = urlsplit(PUBLIC_URL)
ALLOWED_HOSTS = [*ENVIRONMENT.allowed_hosts, *([_public.hostname] if _public.hostname else [])]
CSRF_TRUSTED_ORIGINS = [PUBLIC_URL]
SESSION_COOKIE_SECURE = CSRF_COOKIE_SECURE = _public.scheme == "https"
SESSION_COOKIE_HTTPONLY = True
CSRF_COOKIE_HTTPONLY = True
# The proxy sets this header and drops the caller's. Without a proxy, anybody could set it.
SECURE_PROXY_SSL_HEADER = (
    ("HTTP_X_FORWARDED_PROTO", "https") if ENVIRONMENT.trusted_proxies else None
)
SECURE_HSTS_SECONDS = ENVIRONMENT.hsts_s if _public.scheme == "https" else 0
SECURE_CONTENT_TYPE_NOSNIFF = True
X_FRAME_OPTIONS = "DENY"

ROOT_URLCONF = "broker_site.urls"
WSGI_APPLICATION = "broker_site.server.wsgi.application"
INSTALLED_APPS = [
    "unfold.apps.BasicAppConfig",
    "unfold.contrib.filters",
    "broker_site.apps.ConsoleConfig",
    "django.contrib.auth",
    "django.contrib.humanize",
    "django.contrib.contenttypes",
    "django.contrib.sessions",
    "django.contrib.messages",
    "django.contrib.staticfiles",
    "django_q",
    "rest_framework",
    "drf_spectacular",
    "drf_spectacular_sidecar",
    "django_prometheus",
    "allauth",
    "allauth.account",
    "allauth.mfa",
    "channels_app",
    "delivery",
    "broker_site.apps.SiteConfig",
]
MIDDLEWARE = [
    "broker_site.server.middleware.Headers",
    "broker_site.server.middleware.Origin",
    "django_prometheus.middleware.PrometheusBeforeMiddleware",
    "broker_site.server.middleware.Forms",
    "django.middleware.security.SecurityMiddleware",
    "whitenoise.middleware.WhiteNoiseMiddleware",
    "django.contrib.sessions.middleware.SessionMiddleware",
    "django.middleware.common.CommonMiddleware",
    "django.middleware.csrf.CsrfViewMiddleware",
    "django.contrib.auth.middleware.AuthenticationMiddleware",
    "django.contrib.messages.middleware.MessageMiddleware",
    "django.middleware.clickjacking.XFrameOptionsMiddleware",
    "allauth.account.middleware.AccountMiddleware",
    "broker_site.server.middleware.Keys",
    "django_prometheus.middleware.PrometheusAfterMiddleware",
]
# Programs' requests skip all middleware (broker_site/server/fast_path.py).
TEMPLATES = [
    {
        "BACKEND": "django.template.backends.django.DjangoTemplates",
        "DIRS": [BASE_DIR / "templates"],
        "APP_DIRS": True,
        "OPTIONS": {
            "context_processors": [
                "django.template.context_processors.request",
                "django.contrib.auth.context_processors.auth",
                "django.contrib.messages.context_processors.messages",
            ],
            "libraries": {
                "console": "broker_site.console.tags",
                "portal": "channels_app.portal.tags",
                "jobs": "delivery.admin.job_tags",
            },
        },
    }
]

_url = ENVIRONMENT.database_url or dialects.EMBEDDED.url_in(DATA_DIR)
_database: dict[str, Any] = Env.db_url_config(_url)
_database |= {"CONN_MAX_AGE": 60, "CONN_HEALTH_CHECKS": True}
# The options for durable commits (docs/settings.md).
dialects.BY_SCHEME[urlsplit(_url).scheme].configure(_database, DATA_DIR)
DATABASES = {"default": _database}
DEFAULT_AUTO_FIELD = "django.db.models.BigAutoField"
# MariaDB creates django-q2's partial index without its condition, which only makes it larger, and
# skips allauth's conditional unique constraints, which its forms check as well. The TLS proxy
# redirects plain HTTP (W008). HSTS must not include subdomains we do not own (W005, W021).
SILENCED_SYSTEM_CHECKS = [
    *("models.W036", "models.W037"),
    *("security.W005", "security.W008", "security.W021"),
]
USE_TZ = True
TIME_ZONE = "UTC"
LANGUAGE_CODE = "en"
USE_I18N = False
FORMAT_MODULE_PATH = "broker_site.console.formats"
# Django's own limit guards form posts; message bodies have their own (MAX_BODY_BYTES).
DATA_UPLOAD_MAX_MEMORY_SIZE = 5 * 1024 * 1024

LOGIN_URL = LOGOUT_REDIRECT_URL = "account_login"
LOGIN_REDIRECT_URL = "portal:choose"
CSRF_FAILURE_VIEW = "broker_site.server.errors.not_from_here"

# One sign-in page for everybody, with one count of wrong passwords (decision 12).
AUTHENTICATION_BACKENDS = ["allauth.account.auth_backends.AuthenticationBackend"]
AUTH_PASSWORD_VALIDATORS = [
    {
        "NAME": "django.contrib.auth.password_validation.MinimumLengthValidator",
        "OPTIONS": {"min_length": 10},
    },
    {"NAME": "django.contrib.auth.password_validation.CommonPasswordValidator"},
    {"NAME": "django.contrib.auth.password_validation.UserAttributeSimilarityValidator"},
]
SIGNUP = ENVIRONMENT.signup
ACCOUNT_ADAPTER = "channels_app.portal.accounts.Accounts"
_FORMS = "channels_app.portal.accounts"
ACCOUNT_FORMS = {
    "login": f"{_FORMS}.SignIn",
    "signup": f"{_FORMS}.SignUp",
    "add_email": f"{_FORMS}.EmailForm",
    "change_password": f"{_FORMS}.Password",
    "reset_password": f"{_FORMS}.Forgotten",
    "reset_password_from_key": f"{_FORMS}.NewPassword",
    "reauthenticate": f"{_FORMS}.Again",
}
ACCOUNT_LOGIN_METHODS = {"username", "email"}
ACCOUNT_SIGNUP_FIELDS = ["username*", "email*", "password1*", "password2*"]
# A member vouches for an invited person; with open sign-up the address has to be verified.
ACCOUNT_EMAIL_VERIFICATION = "mandatory" if SIGNUP == "open" else "optional"
ACCOUNT_CHANGE_EMAIL = True
ACCOUNT_EMAIL_NOTIFICATIONS = True
# A form with an arbitrary address must not send mail to it.
ACCOUNT_EMAIL_UNKNOWN_ACCOUNTS = False
ACCOUNT_EMAIL_SUBJECT_PREFIX = "[Hookstation] "
ACCOUNT_LOGOUT_REDIRECT_URL = LOGOUT_REDIRECT_URL
ALLAUTH_TRUSTED_PROXY_COUNT = ENVIRONMENT.trusted_proxies
MFA_FORMS = {
    "authenticate": f"{_FORMS}.Code",
    "reauthenticate": f"{_FORMS}.CodeAgain",
    "activate_totp": f"{_FORMS}.FirstCode",
}
MFA_ADAPTER = "channels_app.portal.accounts.SecondFactors"
MFA_TOTP_ISSUER = "Hookstation"
MFA_ALLOW_UNVERIFIED_EMAIL = True

CAN_MAIL = bool(ENVIRONMENT.email_url)
"""Without it, mail is written to the log, which only operators can read."""
DEFAULT_FROM_EMAIL = SERVER_EMAIL = ENVIRONMENT.email_from
_mail = Env.email_url_config(ENVIRONMENT.email_url or "consolemail://")
EMAIL_BACKEND = _mail["EMAIL_BACKEND"]
EMAIL_FILE_PATH = _mail["EMAIL_FILE_PATH"]
EMAIL_HOST, EMAIL_PORT = _mail["EMAIL_HOST"] or "localhost", _mail["EMAIL_PORT"] or 25
EMAIL_HOST_USER = _mail["EMAIL_HOST_USER"] or ""
EMAIL_HOST_PASSWORD = _mail["EMAIL_HOST_PASSWORD"] or ""
EMAIL_USE_TLS, EMAIL_USE_SSL = _mail.get("EMAIL_USE_TLS", False), _mail.get("EMAIL_USE_SSL", False)
EMAIL_TIMEOUT = 10

TRIES_TABLE = "hookstation_cache"
CACHES = {
    # Counts of wrong passwords, shared by all web processes on all hosts. Each write counts the
    # rows, but only sign-ins write, and the sweep `tries` deletes expired rows.
    "default": {
        "BACKEND": "broker_site.server.cache.ValuesCache",
        "LOCATION": TRIES_TABLE,
        "OPTIONS": {"MAX_ENTRIES": 100_000},
    },
    "process": {"BACKEND": "django.core.cache.backends.locmem.LocMemCache"},
}

STATIC_URL = "static/"
# `collectstatic` may copy files here; serving them does not need it.
STATIC_ROOT = DATA_DIR / "static"
STATIC_ROOT.mkdir(exist_ok=True)
STATICFILES_DIRS = [BASE_DIR / "static"]
WHITENOISE_USE_FINDERS = True

REST_FRAMEWORK: dict[str, Any] = {
    "DEFAULT_AUTHENTICATION_CLASSES": ["channels_app.api.authentication.KeyAuthentication"],
    "DEFAULT_PERMISSION_CLASSES": ["channels_app.api.authentication.HasScope"],
    "DEFAULT_RENDERER_CLASSES": ["rest_framework.renderers.JSONRenderer"],
    "DEFAULT_PARSER_CLASSES": ["rest_framework.parsers.JSONParser"],
    "DEFAULT_SCHEMA_CLASS": "drf_spectacular.openapi.AutoSchema",
    "DEFAULT_THROTTLE_CLASSES": [],
    "EXCEPTION_HANDLER": "channels_app.api.problems.handle",
    "UNAUTHENTICATED_USER": None,
    "UNAUTHENTICATED_TOKEN": None,
}
SPECTACULAR_SETTINGS: dict[str, Any] = {
    "TITLE": "Hookstation",
    "DESCRIPTION": "A reliable webhook broker: it stores every message before it says yes.",
    "VERSION": "1",
    "OAS_VERSION": "3.1.1",
    "SERVE_INCLUDE_SCHEMA": False,
    "SWAGGER_UI_DIST": "SIDECAR",
    "SWAGGER_UI_FAVICON_HREF": "SIDECAR",
    "SERVE_PERMISSIONS": ["rest_framework.permissions.AllowAny"],
    "SERVE_AUTHENTICATION": [],
    "SCHEMA_PATH_PREFIX": "/api/v1",
    "POSTPROCESSING_HOOKS": ["channels_app.api.openapi.complete"],
}

UNFOLD = unfold.UNFOLD

Q_CLUSTER: dict[str, Any] = {
    "name": "hookstation",
    "orm": "default",
    "broker_class": "delivery.processes.task_queue.TaskBroker",
    "cache": "process",
    # Pumps, one maintenance process, one worker for schedules.
    "workers": ENVIRONMENT.pumps + 2,
    # Keeping successes would cost a locking read of 250 rows per task.
    "save_limit": -1,
    "bulk": 10,
    "poll": 2.0,  # one task per minute, and pipeline runs that people request
    "timeout": 300,
    "retry": 360,
    "max_attempts": 1,
    "ack_failures": True,
    "catch_up": False,
    "label": "Background tasks",
    "log_level": "WARNING",
}

LOGGING: dict[str, Any] = {
    "version": 1,
    "disable_existing_loggers": False,
    "formatters": {"line": {"format": "%(asctime)s %(levelname)s %(name)s %(message)s"}},
    "filters": {"links": {"()": "broker_site.server.security.HideLinks"}},
    "handlers": {
        "stderr": {"class": "logging.StreamHandler", "formatter": "line", "filters": ["links"]}
    },
    "root": {"handlers": ["stderr"], "level": ENVIRONMENT.log_level},
    # A rejected request is not our error: a producer over its rate must not fill the log.
    # django-q2's messages about workers would hide those of the broker.
    "loggers": {"django.request": {"level": "ERROR"}, "django-q": {"level": "WARNING"}},
}

# Processes of one installation sum their metrics in this folder. prometheus_client reads the
# variable when it is imported, so it has to be set before any app is loaded. Each host has its own
# folder: two containers on one volume can have equal process ids.
PROMETHEUS_DIR = ENVIRONMENT.metrics_dir or str(DATA_DIR / "metrics" / socket.gethostname())
if "pytest" not in sys.modules:
    env.BASE_DIR.joinpath(PROMETHEUS_DIR).mkdir(parents=True, exist_ok=True)
    env.export("PROMETHEUS_MULTIPROC_DIR", PROMETHEUS_DIR)
