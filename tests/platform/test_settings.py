"""Unsafe settings are refused at the start, with a sentence; safe ones pass Django's own deployment check (threat A11)."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from django.conf import settings

ROOT = Path(__file__).resolve().parents[2]
PUBLIC = {"BERTH_PUBLIC_URL": "https://berth.example.com"}


def manage(home: Path, *arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    """`manage.py …` in a process of its own, with no settings but these."""
    clean = {k: v for k, v in os.environ.items() if not k.startswith(("BERTH_", "DJANGO_", "DATABASE_", "REDIS_"))}
    return subprocess.run(
        [sys.executable, "manage.py", *arguments],
        cwd=ROOT,
        env={**clean, "BERTH_HOME": str(home), **environment},
        capture_output=True,
        text=True,
        check=False,
    )


@pytest.mark.threat("A11")
def test_production_settings_pass_the_deployment_check(tmp_path: Path) -> None:
    done = manage(tmp_path, "check", "--deploy", "--fail-level", "WARNING", **PUBLIC)
    assert done.returncode == 0, done.stderr
    assert "no issues" in done.stdout


@pytest.mark.threat("A11")
@pytest.mark.parametrize(
    ("environment", "sentence"),
    [
        ({**PUBLIC, "BERTH_DEBUG": "1"}, "BERTH_DEBUG=1 shows internals"),
        ({"BERTH_PUBLIC_URL": "http://berth.example.com"}, "must begin with https://"),
        ({"BERTH_PUBLIC_URL": "http://10.0.0.5:8000"}, "must begin with https://"),
        ({**PUBLIC, "BERTH_ALLOWED_HOSTS": "*"}, "must name hosts"),
        ({**PUBLIC, "BERTH_ALLOWED_HOSTS": "a.example, *"}, "must name hosts"),
        ({"BERTH_ALLOWED_HOSTS": ".example.com"}, "must name hosts"),
        ({"BERTH_DEBUG": "maybe"}, "must be 1 or 0"),
        ({"DATABASE_URL": "sqlite:///x"}, "DATABASE_URL must look like"),
    ],
)
def test_unsafe_settings_are_refused(tmp_path: Path, environment: dict[str, str], sentence: str) -> None:
    done = manage(tmp_path, "check", **environment)
    assert done.returncode != 0
    assert sentence in done.stderr


@pytest.mark.threat("A11")
@pytest.mark.parametrize("secret", ["", "short", "django-insecure-" + "x" * 60, "a" * 64])
def test_a_weak_secret_key_is_refused(tmp_path: Path, secret: str) -> None:
    (tmp_path / "secrets").mkdir()
    (tmp_path / "secrets" / "django_secret_key").write_text(secret)
    done = manage(tmp_path, "check")
    assert done.returncode != 0
    assert "django_secret_key" in done.stderr
    assert len(secret) < 6 or secret not in done.stderr


@pytest.mark.threat("A11")
def test_there_is_no_admin_site_and_no_browsable_api() -> None:
    assert "django.contrib.admin" not in settings.INSTALLED_APPS
    assert settings.REST_FRAMEWORK["DEFAULT_RENDERER_CLASSES"] == ["rest_framework.renderers.JSONRenderer"]
    assert settings.REST_FRAMEWORK["DEFAULT_PARSER_CLASSES"] == ["berth.web.parsers.JsonParser"]
    assert settings.REST_FRAMEWORK["DEFAULT_PERMISSION_CLASSES"] == ["berth.web.auth.DenyByDefault"]


@pytest.mark.threat("A2")
def test_cookies_behind_https_are_bound_to_the_host(tmp_path: Path) -> None:
    shown = (
        "from django.conf import settings as s; "
        "print(s.SESSION_COOKIE_NAME, s.CSRF_COOKIE_NAME, s.SESSION_COOKIE_SECURE, s.CSRF_COOKIE_SECURE, "
        "s.SESSION_COOKIE_HTTPONLY, s.SESSION_COOKIE_SAMESITE, s.SECURE_HSTS_SECONDS >= 31536000)"
    )
    done = manage(tmp_path, "shell", "--no-imports", "-c", shown, **PUBLIC)
    assert done.stdout.split() == [
        "__Host-berth_session",
        "__Host-berth_csrf",
        "True",
        "True",
        "True",
        "Lax",
        "True",
    ], done.stderr


@pytest.mark.threat("A4")
@pytest.mark.django_db
def test_links_come_from_the_public_url_and_forged_hosts_are_refused() -> None:
    from tests import make

    owner = make.member(make.org(), "owner")
    client, address = make.client(owner.user), f"/api/v1/orgs/{owner.org.slug}/invitations"
    for number, headers in enumerate(
        ({"Host": "evil.example"}, {"Host": "127.0.0.1:8000@evil.example"}, {"Host": "evil.example:80"})
    ):
        sent = {"email": f"n{number}@example.org", "role": "viewer"}
        assert client.post(address, sent, "application/json", headers=headers).status_code == 400
    sent = {"email": "ok@example.org", "role": "viewer"}
    made = client.post(address, sent, "application/json", headers={"X-Forwarded-Host": "evil.example"}).json()
    assert made["url"].startswith(f"{settings.PUBLIC_URL}/invite/")


@pytest.mark.threat("A3")
def test_passwords_are_hashed_with_argon2_alone() -> None:
    assert settings.PASSWORD_HASHERS == ["berth.web.hashers.Argon2Hasher"]


@pytest.mark.threat("D1")
def test_the_cache_holds_json_not_pickle() -> None:
    from django.core.cache import cache

    serializer = settings.CACHES["default"]["OPTIONS"]["serializer"]
    assert serializer == "berth.web.cache.JsonSerializer"
    assert type(cache._cache._serializer).__name__ == "JsonSerializer"  # type: ignore[attr-defined]


@pytest.mark.threat("D1")
@pytest.mark.django_db
def test_a_pickle_in_valkey_is_not_run(valkey: object) -> None:
    import pickle

    from django.core.cache import cache

    class Marker:
        def __reduce__(self) -> tuple[object, tuple[str]]:
            return os.mkdir, ("/tmp/berth-pickle-ran",)

    cache._cache.get_client(None, write=True).set(cache.make_key("planted"), pickle.dumps(Marker()))  # type: ignore[attr-defined]
    with pytest.raises(ValueError, match=r"decode|Expecting|JSON"):
        cache.get("planted")
    assert not Path("/tmp/berth-pickle-ran").exists()
    cache.set("kept", [1.5, {"a": None}])
    cache.set("count", 41)
    cache.incr("count")
    assert (cache.get("kept"), cache.get("count")) == ([1.5, {"a": None}], 42)
