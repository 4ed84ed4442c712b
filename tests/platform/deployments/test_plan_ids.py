"""What was seen is what is deployed; whatever has changed since is told before anything is done."""

from __future__ import annotations

from datetime import timedelta
from decimal import Decimal
from typing import Any

import msgspec
import pytest
from django.test import Client

from berth.compute.provider import Offer
from berth.compute.providers.fake import FakeProvider
from berth.deployments import planning, proposals
from berth.deployments.models import Deployment
from berth.planner.learning import TPOT, Factor
from tests import make

pytestmark = [pytest.mark.django_db, pytest.mark.usefixtures("provider")]
PLANS, URL = "/api/v1/orgs/acme/plans", "/api/v1/orgs/acme/deployments"
BODY = {"model": "tiny", "needs": {"concurrency": 2}, "replicas": 2}


@pytest.fixture
def owner() -> Client:
    member = make.member(make.org("acme"), "owner")
    make.artefact(make.version(make.model(member.org, "tiny")))
    return make.client(member.user)


def post(client: Client, url: str, body: Any) -> Any:
    return client.post(url, body, "application/json")


def seen(client: Client, **more: Any) -> str:
    found = post(client, PLANS, BODY | more).json()["plan_id"]
    assert isinstance(found, str)
    return found


def price(provider: FakeProvider, monkeypatch: pytest.MonkeyPatch, amount: str) -> None:
    offers = FakeProvider.offers(provider)

    def priced() -> list[Offer]:
        return [msgspec.structs.replace(each, price_per_hour=Decimal(amount)) for each in offers]

    monkeypatch.setattr(provider, "offers", priced)


def none_made() -> bool:
    return not Deployment.objects.across_orgs("nothing may have been made").exists()


def test_what_was_seen_is_deployed(owner: Client) -> None:
    answer = post(owner, URL, BODY | {"name": "bot", "plan_id": seen(owner)})
    assert answer.status_code == 201
    assert answer.json()["revision"]["replicas"] == 2


def test_another_price_asks_again_with_both_prices(
    owner: Client, provider: FakeProvider, monkeypatch: pytest.MonkeyPatch
) -> None:
    price(provider, monkeypatch, "1.21")
    plan_id = seen(owner)
    price(provider, monkeypatch, "1.35")
    answer = post(owner, URL, BODY | {"plan_id": plan_id})
    error = answer.json()["error"]
    assert (answer.status_code, error["code"], error["field"]) == (409, "plan.stale", "plan_id")
    assert error["params"]["differences"] == [{"field": "price_per_hour", "before": "2.42", "after": "2.70"}]
    assert "2.70" in error["message"] and "2.42" in error["message"]
    assert error["params"]["expired"] is False
    assert none_made()
    assert post(owner, URL, BODY | {"plan_id": error["params"]["plan_id"]}).status_code == 201


def test_another_artefact_asks_again(owner: Client) -> None:
    plan_id = seen(owner)
    version = proposals.find_version(make_org(), "tiny", None)
    make.artefact(version, quantization="Q8_0", facts=_wider(version))
    error = post(owner, URL, BODY | {"plan_id": plan_id}).json()["error"]
    assert error["code"] == "plan.stale"
    fields = {each["field"]: (each["before"], each["after"]) for each in error["params"]["differences"]}
    assert fields["quantization"] == ("Q4_1", "Q8_0")
    assert set(fields) == {"quantization", "artefact_id"}
    assert none_made()


def make_org() -> Any:
    return make.Organisation.objects.get(slug="acme")


def _wider(version: Any) -> dict[str, Any]:
    facts = dict(version.artefacts.get().facts)
    return facts | {"quantization": "Q8_0", "tensor_bytes": facts["tensor_bytes"] * 2}


@pytest.mark.parametrize(("factor", "status"), [(1.02, 201), (1.2, 409)])
def test_what_was_learnt_in_between_asks_again_when_it_matters(
    owner: Client, monkeypatch: pytest.MonkeyPatch, factor: float, status: int
) -> None:
    plan_id = seen(owner)
    learnt = {("llamacpp", "Q4_1", "cpu-fake", TPOT): Factor(factor, factor, 3, 0, 500)}
    monkeypatch.setattr(planning, "factors", lambda: learnt)
    answer = post(owner, URL, BODY | {"plan_id": plan_id})
    assert answer.status_code == status
    if status == 409:
        (difference,) = answer.json()["error"]["params"]["differences"]
        assert difference["field"] == "tokens_per_second"
        assert difference["after"] < difference["before"]


def test_a_plan_holds_a_quarter_of_an_hour(owner: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("django.utils.timezone.now", lambda: make.NOON)
    plan_id = seen(owner)
    for minutes, status in ((16, 409), (14, 201)):
        monkeypatch.setattr("django.utils.timezone.now", lambda late=minutes: make.NOON + timedelta(minutes=late))
        answer = post(owner, URL, BODY | {"plan_id": plan_id})
        assert answer.status_code == status
        if status == 409:
            params = answer.json()["error"]["params"]
            assert (params["expired"], params["differences"]) == (True, [])


@pytest.mark.threat("A1")
def test_an_id_is_for_one_organisation_and_one_question(owner: Client) -> None:
    other = make.member(make.org(), "owner")
    make.artefact(make.version(make.model(other.org, "tiny")))
    foreign = post(make.client(other.user), f"/api/v1/orgs/{other.org.slug}/plans", BODY).json()["plan_id"]
    own = seen(owner)
    for plan_id in (foreign, seen(owner, replicas=1), own[:-2] + "xx", "made-up", "x" * 1999):
        answer = post(owner, URL, BODY | {"plan_id": plan_id})
        assert (answer.status_code, answer.json()["error"]["code"]) == (422, "plan.unknown")
    assert none_made()


def test_nothing_that_fits_has_no_id_and_is_told_as_always(owner: Client) -> None:
    assert post(owner, PLANS, BODY | {"needs": {"tokens_per_second": 90_000}}).json()["plan_id"] is None
    plan_id = seen(owner)
    body = BODY | {"plan_id": plan_id}
    proposals.find_version(make_org(), "tiny", None).artefacts.update(engines=["other"])
    assert post(owner, URL, body).json()["error"]["code"] == "no_plan"


def test_licences_that_are_allowed(owner: Client) -> None:
    unknown = post(owner, PLANS, {"model": "tiny", "needs": {"licences": ["Apache-2.0"]}}).json()
    assert unknown["rejected"][0]["code"] == "licence_unknown"
    assert [each["code"] for each in unknown["changes"]] == ["any_licence"]
    make.ModelVersion.objects.for_org(make_org()).update(licence="Apache-2.0")
    for allowed, fits in ((["apache-2.0", "MIT"], True), (["MIT"], False), ([], True)):
        found = post(owner, PLANS, {"model": "tiny", "needs": {"licences": allowed}}).json()
        assert found["fits"] is fits
        if not fits:
            assert found["changes"][0]["params"]["value"] == ["MIT", "Apache-2.0"]
            again = post(owner, PLANS, {"model": "tiny", "needs": {"licences": found["changes"][0]["params"]["value"]}})
            assert again.json()["fits"] is True


def test_a_change_is_held_to_the_plan_that_was_seen(
    owner: Client, provider: FakeProvider, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert post(owner, URL, BODY | {"name": "bot"}).status_code == 201

    def change(**body: Any) -> Any:
        return owner.patch(f"{URL}/bot", body, "application/json")

    more = {"concurrency": 1}
    plan_id = seen(owner, needs=more, replicas=1)
    other = change(needs=more, replicas=3, plan_id=plan_id)
    assert (other.status_code, other.json()["error"]["code"]) == (422, "plan.unknown")
    price(provider, monkeypatch, "0.5")
    stale = change(needs=more, replicas=1, plan_id=plan_id)
    assert (stale.status_code, stale.json()["error"]["code"]) == (409, "plan.stale")
    assert owner.get(f"{URL}/bot").json()["revision"]["number"] == 1
    again = stale.json()["error"]["params"]["plan_id"]
    done = change(needs=more, replicas=1, plan_id=again)
    assert (done.status_code, done.json()["revision"]["number"]) == (200, 2)
