"""Addresses with passwords in them may come from files, for the control plane and for gateways."""

from __future__ import annotations

from pathlib import Path

import pytest

from berth.env import read_or_file
from berth_gateway.config import Config, ConfigError

URL = "redis://user:password@host:6379/0"


def test_a_file_may_hold_what_a_variable_would(tmp_path: Path) -> None:
    (tmp_path / "url").write_text(f"{URL}\n")
    assert read_or_file("REDIS_URL", {"REDIS_URL_FILE": str(tmp_path / "url")}) == URL
    assert read_or_file("REDIS_URL", {"REDIS_URL_FILE": str(tmp_path / "url"), "REDIS_URL": "redis://x"}) == "redis://x"
    assert read_or_file("DATABASE_URL", {}) == ""
    with pytest.raises(ValueError, match="REDIS_URL_FILE cannot be read"):
        read_or_file("REDIS_URL", {"REDIS_URL_FILE": str(tmp_path / "nothing")})


def test_a_gateway_takes_it_from_a_file_too(tmp_path: Path) -> None:
    (tmp_path / "url").write_text(f"{URL}\n")
    environ = {
        "BERTH_GATEWAY_DIR": str(tmp_path),
        "BERTH_SNAPSHOT_PUBLIC_KEY_FILE": str(tmp_path / "public"),
        "BERTH_USAGE_KEY_FILE": str(tmp_path / "key"),
    }
    assert Config.from_environ({**environ, "REDIS_URL_FILE": str(tmp_path / "url")}).redis_url == URL
    with pytest.raises(ConfigError, match="REDIS_URL_FILE cannot be read"):
        Config.from_environ({**environ, "REDIS_URL_FILE": str(tmp_path / "nothing")})
    with pytest.raises(ConfigError, match="REDIS_URL is not set"):
        Config.from_environ(environ)
