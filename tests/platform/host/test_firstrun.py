"""The first start's own work, against the real services; that the model then answers is for the end-to-end tests."""

from __future__ import annotations

import json
import stat
from pathlib import Path
from typing import Any

import pytest
from django.test import Client

from berth.deployments.models import Deployment
from berth.host import firstrun
from berth.host.home import Home
from berth.keys.models import ApiKey
from berth.keys.secret import digest_of
from berth.orgs.models import Member, Organisation, User
from tests import make

pytestmark = pytest.mark.django_db


@pytest.fixture
def home(tmp_path: Path) -> Home:
    made = Home(tmp_path / "home")
    made.prepare()
    return made


def sign_in(facts: dict[str, Any]) -> int:
    credentials = {"email": facts["email"], "password": facts["password"]}
    return Client().post("/api/v1/auth/browser/v1/auth/login", credentials, "application/json").status_code


def test_operator_organisation_deployment_and_key(home: Home) -> None:
    facts = firstrun.first_start(home, demo=True)
    assert set(facts) == {"dashboard_url", "api_base", "api_key", "model", "email", "password"}
    assert sign_in(facts) == 200
    user = User.objects.get()
    org = Organisation.objects.get(slug="my-org")
    assert user.is_operator
    assert user.password_is_temporary
    assert Member.objects.for_org(org).get(user=user).role == "owner"
    deployment = Deployment.objects.for_org(org).get()
    assert facts["model"] == f"my-org/{deployment.name}" == "my-org/smollm2-135m-instruct"
    assert ApiKey.objects.for_org(org).get().digest == digest_of(facts["api_key"])


def test_interrupted_anywhere_it_goes_on_with_the_same_password(home: Home, monkeypatch: pytest.MonkeyPatch) -> None:
    for place in ("deploy_sample", "deploy_in", "fresh_key"):
        with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):

            def interrupt(*arguments: object) -> None:
                raise KeyboardInterrupt

            patch.setattr(firstrun, place, interrupt)
            firstrun.first_start(home, demo=True)
    lost = firstrun.first_start(home, demo=True)  # and once more, killed before its facts were written
    facts = firstrun.first_start(home, demo=True)
    assert (User.objects.count(), Organisation.objects.count(), Deployment.objects.count()) == (1, 1, 1)
    assert facts["password"] == lost["password"]
    assert sign_in(facts) == 200
    working = ApiKey.objects.get(revoked_at=None)
    assert working.digest == digest_of(facts["api_key"]), "the key that nobody saw does not work any more"
    assert stat.S_IMODE(home.draft.stat().st_mode) == 0o600


def test_without_the_demo_there_is_an_operator_and_nothing_else(home: Home) -> None:
    facts = firstrun.first_start(home, demo=False)
    assert sign_in(facts) == 200
    assert (facts["model"], facts["api_key"]) == (None, None)
    assert Organisation.objects.count() == 0


def test_what_it_did_not_make_it_does_not_touch(home: Home, capsys: pytest.CaptureFixture[str]) -> None:
    make.user("operator@localhost", password=make.PASSWORD, operator=True)
    facts = firstrun.first_start(home, demo=True)
    assert (facts["password"], facts["model"]) == (None, None)
    assert sign_in(facts | {"password": make.PASSWORD}) == 200
    assert "knows an operator already" in json.loads(capsys.readouterr().out)["note"]


def test_another_my_org_is_left_alone(home: Home) -> None:
    org = make.org("my-org")
    facts = firstrun.first_start(home, demo=True)
    assert facts["model"] is None
    assert Member.objects.for_org(org).count() == 0
    assert sign_in(facts) == 200


def test_the_end_of_the_first_start_may_be_killed_anywhere(home: Home) -> None:
    home.write(home.demo_pending, {"api_key": "k"})
    home.write(home.draft, {"password": "p"})
    home.end_first_start()
    home.started.unlink()  # as if it had been killed before it could say that it is over
    home.end_first_start()
    assert home.started_before and home.read(home.demo) == {"api_key": "k"} and not home.draft.exists()


@pytest.mark.parametrize("kept", ["99999", "0", "-5", "true", "5432.0", '"x"', "null"])
def test_a_port_that_is_none_is_chosen_anew(home: Home, kept: str) -> None:
    (home.run / "ports.json").write_text(f'{{"postgres": {kept}}}')
    port = home.port("postgres")
    assert 1024 <= port <= 65535
    assert home.read(home.run / "ports.json") == {"postgres": port}
