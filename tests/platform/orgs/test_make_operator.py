"""The first operator of an installation that has no first start of its own."""

from __future__ import annotations

import io

import pytest
from django.core.management import CommandError, call_command

from berth.orgs.models import User

pytestmark = pytest.mark.django_db


def test_an_operator_gets_a_password_that_is_to_be_changed() -> None:
    out = io.StringIO()
    call_command("make_operator", "ops@berth.example", stdout=out)
    user = User.objects.get(email="ops@berth.example")
    assert user.check_password(out.getvalue().strip())
    assert (user.is_operator, user.password_is_temporary) == (True, True)
    with pytest.raises(CommandError, match="already"):
        call_command("make_operator", "OPS@berth.example")
    with pytest.raises(CommandError, match="no e-mail"):
        call_command("make_operator", "ops")
