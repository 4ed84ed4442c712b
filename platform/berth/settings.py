"""Django's settings. What an operator may set is declared in `berth.env`; the rest is decided here."""

from __future__ import annotations

import re
import secrets as _secrets
import sys
from pathlib import Path
from urllib.parse import unquote, urlsplit

from django.core.exceptions import ImproperlyConfigured
from redis.backoff import NoBackoff
from redis.retry import Retry

from berth.env import data_folder, read, read_flag, read_or_file

PROJECT_DIR = Path(__file__).resolve().parents[2]
BERTH_HOME = data_folder().resolve()
SECRETS_DIR = Path(read("BERTH_SECRETS_DIR") or BERTH_HOME / "secrets")
BERTH_LIFELINE = BERTH_HOME / "lifeline"
STORE_DIR = BERTH_HOME / "store"
STORE_S3_BUCKET = read("BERTH_STORE_S3_BUCKET")
STORE_S3_ENDPOINT = read("BERTH_STORE_S3_ENDPOINT")
STORE_S3_REGION = read("BERTH_STORE_S3_REGION")
STORE_S3_PREFIX = read("BERTH_STORE_S3_PREFIX")
STORE_QUOTA_BYTES = int(read("BERTH_STORE_QUOTA_BYTES"))
IMPORT_ROOTS = [Path(each) for each in read("BERTH_IMPORT_ROOTS").split(":") if each]
OUTBOUND_PRIVATE_HOSTS = [
    each.strip().lower() for each in read("BERTH_OUTBOUND_PRIVATE_HOSTS").split(",") if each.strip()
]
HUB_ENDPOINT = read("BERTH_HUB_ENDPOINT").rstrip("/")
PUBLIC_URL = (read("BERTH_PUBLIC_URL") or f"http://127.0.0.1:{read('BERTH_PORT')}").rstrip("/")
API_BASE = (read("BERTH_API_BASE") or f"http://127.0.0.1:{read('BERTH_GATEWAY_PORT')}/v1").rstrip("/")
PROVIDER = read("BERTH_PROVIDER")
REGION = read("BERTH_REGION") or None
CGROUP = Path(read("BERTH_CGROUP")) if read("BERTH_CGROUP") else None
KUBERNETES_FILE = read("BERTH_KUBERNETES_FILE")
CURRENCY = read("BERTH_CURRENCY")
DEBUG = read_flag("BERTH_DEBUG")

_LOOPBACK = ("127.0.0.1", "localhost", "[::1]")


def _secret(name: str) -> str:
    """A secret from its file. Commands that run before the first start (`check`, `spectacular`) get a throw-away one."""
    path = SECRETS_DIR / name
    if path.is_file():
        value = path.read_text().strip()
        if len(value) < 40 or len(set(value)) < 10 or value.startswith("django-insecure"):
            raise ImproperlyConfigured(
                f"The secret in {path} is too weak. Remove the file and start again: a new one is made, and everybody signs in anew."
            )
        return value
    return _secrets.token_urlsafe(48)


def _database(url: str) -> dict[str, object]:
    parts = urlsplit(url)
    if parts.scheme not in {"postgres", "postgresql"} or not parts.path.strip("/"):
        raise ImproperlyConfigured("DATABASE_URL must look like postgresql://user:password@host:5432/name.")
    return {
        "ENGINE": "django.db.backends.postgresql",
        "NAME": unquote(parts.path.lstrip("/")),
        "USER": unquote(parts.username or ""),
        "PASSWORD": unquote(parts.password or ""),
        "HOST": parts.hostname or "",
        "PORT": str(parts.port or 5432),
        "CONN_MAX_AGE": 60,
        "CONN_HEALTH_CHECKS": True,
        "OPTIONS": {"connect_timeout": 3, "application_name": "berth"},
    }


SECRET_KEY = _secret("django_secret_key")
_public = urlsplit(PUBLIC_URL)
_public_host = _public.hostname or ""
IS_LOOPBACK = _public_host in {"127.0.0.1", "localhost", "::1"}
if DEBUG and not IS_LOOPBACK:
    raise ImproperlyConfigured(
        "BERTH_DEBUG=1 shows internals to whoever calls. Unset it, or use a loopback BERTH_PUBLIC_URL."
    )
if not IS_LOOPBACK and _public.scheme != "https":
    raise ImproperlyConfigured(
        "BERTH_PUBLIC_URL is not on this machine, so it must begin with https://. Put a TLS proxy in front."
    )
ALLOWED_HOSTS = [*_LOOPBACK, _public_host, *filter(None, (h.strip() for h in read("BERTH_ALLOWED_HOSTS").split(",")))]
if any("*" in host or host.startswith(".") for host in ALLOWED_HOSTS):
    raise ImproperlyConfigured("BERTH_ALLOWED_HOSTS must name hosts one by one; a pattern would let any name in.")

INSTALLED_APPS = [
    "django.contrib.contenttypes",
    "django.contrib.auth",
    "django.contrib.sessions",
    "rest_framework",
    "drf_spectacular",
    "allauth",
    "allauth.account",
    "allauth.headless",
    "berth.outbox",
    "berth.orgs",
    "berth.keys",
    "berth.catalog",
    "berth.metering",
    "berth.privacy",
    "berth.deployments",
    "berth.billing",
    "berth.publishing",
]
MIDDLEWARE = [
    "berth.web.request_id.RequestIdMiddleware",
    "django.middleware.security.SecurityMiddleware",
    "berth.web.headers.SecurityHeadersMiddleware",
    "whitenoise.middleware.WhiteNoiseMiddleware",
    "django.contrib.sessions.middleware.SessionMiddleware",
    "django.middleware.common.CommonMiddleware",
    "django.middleware.csrf.CsrfViewMiddleware",
    "django.contrib.auth.middleware.AuthenticationMiddleware",
    "allauth.account.middleware.AccountMiddleware",
]
ROOT_URLCONF = "berth.urls"
ASGI_APPLICATION = "berth.asgi.application"
TEMPLATES = [
    {
        "BACKEND": "django.template.backends.django.DjangoTemplates",
        "APP_DIRS": True,
        "OPTIONS": {"context_processors": []},
    }
]
APPEND_SLASH = False

_database_url = read_or_file("DATABASE_URL")
# Without a database there is still `check`, `spectacular` and `makemigrations`; a connection attempt then says what is missing.
DATABASES = {"default": _database(_database_url or "postgresql://berth@127.0.0.1:5432/berth")}
DEFAULT_AUTO_FIELD = "django.db.models.BigAutoField"
REDIS_URL = read_or_file("REDIS_URL") or "redis://127.0.0.1:6379/0"
CACHES = {
    "default": {
        "BACKEND": "django.core.cache.backends.redis.RedisCache",
        "LOCATION": REDIS_URL,
        "KEY_PREFIX": "berth:cache",
        "OPTIONS": {
            "serializer": "berth.web.cache.JsonSerializer",
            "socket_connect_timeout": 1,
            "socket_timeout": 2,
            "retry": Retry(NoBackoff(), 1),
        },
    }
}

LANGUAGE_CODE = "en"
LANGUAGES = [("en", "English"), ("zh-hans", "简体中文")]
USE_I18N = False  # the dashboard translates by stable codes; the API speaks English
USE_TZ = True
TIME_ZONE = "UTC"

STATIC_URL = "/assets/"
STATIC_ROOT = None
STATICFILES_DIRS: list[Path] = []
FRONTEND_DIST = PROJECT_DIR / "frontend" / "dist"
WHITENOISE_ROOT = FRONTEND_DIST
WHITENOISE_INDEX_FILE = False
WHITENOISE_AUTOREFRESH = False

# Security (docs/security.md). HTTPS-only switches follow the public URL, because a browser drops Secure cookies on plain loopback HTTP.
_https = _public.scheme == "https"
SESSION_COOKIE_NAME = "__Host-berth_session" if _https else "berth_session"
CSRF_COOKIE_NAME = "__Host-berth_csrf" if _https else "berth_csrf"
SESSION_COOKIE_SECURE = CSRF_COOKIE_SECURE = SECURE_SSL_REDIRECT = _https
SECURE_PROXY_SSL_HEADER = ("HTTP_X_FORWARDED_PROTO", "https") if _https else None
SECURE_HSTS_SECONDS = 31_536_000 if _https else 0
SESSION_COOKIE_HTTPONLY = True
CSRF_COOKIE_HTTPONLY = False  # the dashboard reads it to send X-CSRFToken
SESSION_COOKIE_SAMESITE = CSRF_COOKIE_SAMESITE = "Lax"
CSRF_TRUSTED_ORIGINS = [PUBLIC_URL]
CSRF_FAILURE_VIEW = "berth.web.errors.csrf_failure"
SECURE_REFERRER_POLICY = "no-referrer"
SECURE_CROSS_ORIGIN_OPENER_POLICY = "same-origin"
DATA_UPLOAD_MAX_MEMORY_SIZE = 2 * 1024 * 1024
UPLOAD_PART_BYTES = 8 * 1024 * 1024  # of a model's file; only these addresses take bodies of this size
UPLOAD_PART_PATH = re.compile(r"/api/v1/orgs/[\w-]+/imports/[0-9a-f-]{36}/files/[A-Za-z0-9._-]{1,128}/parts/\d{1,7}")
PASSWORD_HASHERS = ["berth.web.hashers.Argon2Hasher"]
AUTH_PASSWORD_VALIDATORS = [
    {"NAME": "django.contrib.auth.password_validation.UserAttributeSimilarityValidator"},
    {"NAME": "django.contrib.auth.password_validation.MinimumLengthValidator", "OPTIONS": {"min_length": 10}},
    {"NAME": "django.contrib.auth.password_validation.CommonPasswordValidator"},
]

SILENCED_SYSTEM_CHECKS = [
    "auth.W004",  # unique through a constraint on the lower-cased address
    "security.W002",  # X-Frame-Options is set by SecurityHeadersMiddleware
    "security.W005",  # other names under the operator's domain are not ours to force to HTTPS
    "security.W021",  # nor is the browsers' preload list
]
AUTH_USER_MODEL = "orgs.User"
AUTHENTICATION_BACKENDS = ["allauth.account.auth_backends.AuthenticationBackend"]
ACCOUNT_USER_MODEL_USERNAME_FIELD = None
ACCOUNT_LOGIN_METHODS = {"email"}
ACCOUNT_SIGNUP_FIELDS = ["email*", "password1*"]
ACCOUNT_EMAIL_VERIFICATION = "none"  # there is no mail server on one machine; members come by invitation
ACCOUNT_RATE_LIMITS = {"login": "60/m/ip", "login_failed": "60/15m/ip,20/15m/key"}  # key: the account
ACCOUNT_REAUTHENTICATION_TIMEOUT = 900  # seconds for which a password counts as given lately (`orgs.recent`)
ACCOUNT_ADAPTER = "berth.orgs.accounts.AccountAdapter"
HEADLESS_ONLY = True
HEADLESS_CLIENTS = ("browser",)
HEADLESS_FRONTEND_URLS: dict[str, str] = {}

REST_FRAMEWORK = {
    "DEFAULT_AUTHENTICATION_CLASSES": ["berth.web.auth.Session"],
    "DEFAULT_PERMISSION_CLASSES": ["berth.web.auth.DenyByDefault"],
    "DEFAULT_PARSER_CLASSES": ["berth.web.parsers.JsonParser"],
    "DEFAULT_RENDERER_CLASSES": ["rest_framework.renderers.JSONRenderer"],
    "DEFAULT_PAGINATION_CLASS": "berth.web.pagination.CursorPagination",
    "DEFAULT_SCHEMA_CLASS": "berth.web.schema.AutoSchema",
    "EXCEPTION_HANDLER": "berth.web.errors.exception_handler",
    "UNAUTHENTICATED_USER": "django.contrib.auth.models.AnonymousUser",
    "COERCE_DECIMAL_TO_STRING": True,
    "DEFAULT_METADATA_CLASS": None,
    "NUM_PROXIES": 0,  # forwarded addresses are the web server's business
}
SPECTACULAR_SETTINGS = {
    "TITLE": "Berth management API",
    "VERSION": "1",
    "SERVE_INCLUDE_SCHEMA": False,
    "SCHEMA_PATH_PREFIX": "/api/v1",
    "COMPONENT_SPLIT_REQUEST": True,
    "COMPONENT_SPLIT_PATCH": False,  # a body's own serializer says what may be left out
    "ENUM_GENERATE_CHOICE_DESCRIPTION": False,
    "ENUM_NAME_OVERRIDES": {
        "KeyKindEnum": "berth.keys.models.KeyKind",
        "NewKeyKindEnum": [("member", "member"), ("service", "service")],
        "RoleEnum": "berth.orgs.models.Role",
        "KeyStatusEnum": [("active", "active"), ("expired", "expired"), ("revoked", "revoked")],
        "CredentialKindEnum": "berth.catalog.import_models.CredentialKind",
        "ImportSourceEnum": "berth.catalog.import_models.ImportSource",
        "ImportStateEnum": "berth.catalog.import_models.ImportState",
        "DeploymentStateEnum": "berth.deployments.models.State",
        "RolloutStatusEnum": "berth.deployments.models.Status",
        "StatementStatusEnum": [("open", "open"), ("closed", "closed")],
    },
    "POSTPROCESSING_HOOKS": [
        "drf_spectacular.hooks.postprocess_schema_enums",
        "berth.web.openapi.add_hand_written",
    ],
}

PUBLISH_AT_ONCE = True  # the web process publishes its own changes and does not wait for a worker to do it

CELERY_BROKER_URL = REDIS_URL
CELERY_TASK_IGNORE_RESULT = True
CELERY_ACCEPT_CONTENT = ["json"]
CELERY_TASK_SERIALIZER = "json"
CELERY_TASK_ACKS_LATE = True  # a killed worker's task is delivered again; tasks are idempotent
CELERY_TASK_REJECT_ON_WORKER_LOST = True
CELERY_WORKER_PREFETCH_MULTIPLIER = 1
CELERY_WORKER_HIJACK_ROOT_LOGGER = False
CELERY_BROKER_CONNECTION_RETRY_ON_STARTUP = True
CELERY_BROKER_TRANSPORT_OPTIONS = {
    "visibility_timeout": 120,
    "socket_connect_timeout": 1,
    "socket_timeout": 5,
    "global_keyprefix": "berth:celery:",
}
CELERY_TASK_DEFAULT_QUEUE = "default"
CELERY_TASK_ROUTES = {
    "berth.deployments.*": {"queue": "deployments"},
    "berth.catalog.tasks.*": {"queue": "imports"},
    "berth.metering.*": {"queue": "metering"},
    "berth.privacy.*": {"queue": "metering"},
    "berth.billing.*": {"queue": "metering"},
}
CELERY_TIMEZONE = "UTC"
# Celery would connect anew for every task, which costs 9 ms of CPU, seven times a second when nothing happens. They are kept
# between tasks, for CONN_MAX_AGE at most; `berth.celery` lets go of those that have gone bad.
CELERY_DB_REUSE_MAX = sys.maxsize

LOGGING = {
    "version": 1,
    "disable_existing_loggers": False,
    "formatters": {"json": {"()": "berth.web.logs.JsonFormatter"}},
    "handlers": {"stderr": {"class": "logging.StreamHandler", "formatter": "json"}},
    "root": {"handlers": ["stderr"], "level": "INFO"},
    "loggers": {
        "django.request": {"level": "ERROR"},
        "celery": {"level": "INFO"},
        "uvicorn.access": {"handlers": [], "propagate": False},
    },
}
