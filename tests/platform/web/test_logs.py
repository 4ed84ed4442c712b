"""Log lines hold what the allow-list names, and nothing that anyone wrote."""

from __future__ import annotations

import json
import logging
import sys
from typing import Any

import pytest
from django.conf import settings
from django.test import Client
from hypothesis import given
from hypothesis import strategies as st

from berth.web.logs import ALLOWED_FIELDS, JsonFormatter

CANARY = "BC-7Q2M-prompt-canary"


def line_of(message: Any = "fixed", *args: Any, extra: dict[str, Any] | None = None, error: bool = False) -> str:
    record = logging.getLogger("berth.test").makeRecord(
        "berth.test", logging.ERROR, __file__, 1, message, args, sys.exc_info() if error else None, extra=extra
    )
    return JsonFormatter().format(record)


def test_only_named_fields_are_written() -> None:
    line = json.loads(line_of(extra={"prompt": CANARY, "body": CANARY, "request_id": "req_1", "status": 503}))
    assert CANARY not in json.dumps(line)
    assert (line["request_id"], line["status"], line["message"]) == ("req_1", 503, "fixed")


def test_arguments_are_not_put_into_the_message() -> None:
    assert CANARY not in line_of("cannot read %s", CANARY)


def test_an_exception_is_told_by_type_and_place_only() -> None:
    local = CANARY
    try:
        raise ValueError(local)
    except ValueError:
        line = line_of(error=True)
    told = json.loads(line)
    assert told["exception"] == "ValueError" and "test_logs.py" in told["where"] and CANARY not in line


def test_an_object_as_a_message_is_told_by_its_type() -> None:
    assert json.loads(line_of({"prompt": CANARY}))["message"] == "dict"


@given(
    st.dictionaries(
        st.sampled_from(sorted(ALLOWED_FIELDS)), st.text(max_size=400) | st.integers() | st.none(), max_size=4
    )
)
def test_every_line_is_one_json_object(extra: dict[str, Any]) -> None:
    line = line_of(extra=extra)
    assert "\n" not in line and isinstance(json.loads(line), dict)
    assert all(len(str(value)) <= 200 for name, value in json.loads(line).items() if name in extra)


@pytest.mark.parametrize(
    "name", ["prompt", "completion", "messages", "content", "authorization", "secret", "password", "email", "body"]
)
def test_the_allow_list_has_no_room_for_content(name: str) -> None:
    assert name not in ALLOWED_FIELDS


def test_this_is_the_formatter_of_every_handler() -> None:
    assert {h["formatter"] for h in settings.LOGGING["handlers"].values()} == {"json"}
    assert settings.LOGGING["formatters"]["json"]["()"] == "berth.web.logs.JsonFormatter"


@pytest.mark.django_db
def test_a_refused_host_is_not_quoted(caplog: pytest.LogCaptureFixture) -> None:
    canary = "canary4711.example"
    with caplog.at_level(logging.INFO):
        assert Client().get("/api/v1/health", headers={"host": canary}).status_code == 400
    lines = [JsonFormatter().format(record) for record in caplog.records]
    assert any("DisallowedHost" in line and "suspicious_request" in line for line in lines)
    assert not any(canary in line for line in lines)
