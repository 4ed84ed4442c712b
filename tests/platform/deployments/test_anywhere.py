"""What it would take anywhere knows the model's licence, its measured quality, this installation's tiers, and what was learnt on them."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from django.test import Client

from berth.compute.provider import Offer
from berth.compute.providers.fake import FakeProvider
from berth.deployments import planning
from berth.deployments.planning import make_plan
from berth.planner.learning import TPOT, Factor
from berth.planner.needs import Needs, Pins, Quality
from tests import make

pytestmark = [pytest.mark.django_db, pytest.mark.usefixtures("provider")]
URL = "/api/v1/orgs/acme/plans/anywhere"
MEASURED = {"divergence": 0.02, "perplexity_change": 0.021, "agreement": 0.93, "divergence_p99": 0.4}


@pytest.fixture
def owner() -> Client:
    member = make.member(make.org("acme"), "owner")
    version = make.version(make.model(member.org, "tiny"), licence="Apache-2.0")
    make.artefact(version, quantization="Q4_K_M", quality=MEASURED)
    return make.client(member.user)


def asked(client: Client, **body: Any) -> Any:
    answer = client.post(URL, {"model": "tiny"} | body, "application/json")
    assert answer.status_code == 200, answer.content
    return answer.json()


def with_gpu(provider: FakeProvider, monkeypatch: pytest.MonkeyPatch) -> None:
    (offer,) = FakeProvider.offers(provider)
    more: list[Offer] = [offer, msgspec.structs.replace(offer, key="rack-l4", gpu="l4", gpus=2)]
    monkeypatch.setattr(provider, "offers", lambda: more)


def test_a_licence_that_is_not_allowed_leaves_nothing_and_says_what_helps(owner: Client) -> None:
    none = asked(owner, demand={"users": 5, "licences": ["MIT"]})
    assert none["fits"] is False
    assert {each["reason_code"] for each in none["rejected"]} == {"licence_not_allowed"}
    assert none["nearest"][0]["change"]["code"] == "any_licence"
    assert asked(owner, demand={"users": 5, "licences": ["apache-2.0"]})["fits"] is True


def test_what_was_measured_of_an_artefact_goes_before_what_others_lost(owner: Client) -> None:
    """The model is small, so that four bits usually cost it more than a tenth of a score; its file was measured to be better."""
    strict = {"users": 5, "most_loss": 0.01}
    found = asked(owner, demand=strict, pins={"scheme": "Q4_K_M"})
    assert found["fits"] is True
    assert found["choice"]["loss"] == pytest.approx(0.45 * MEASURED["divergence"], abs=1e-4)
    make.Artefact.objects.across_orgs("the test's own").update(quality=None)
    assert asked(owner, demand=strict, pins={"scheme": "Q4_K_M"})["fits"] is False


def test_tiers_of_this_installation_are_weighed_with_what_was_learnt_on_them(
    owner: Client, provider: FakeProvider, monkeypatch: pytest.MonkeyPatch
) -> None:
    with_gpu(provider, monkeypatch)
    pins = {"tier": "rack-l4", "scheme": "Q4_K_M", "engine": "llamacpp", "devices": 1}
    plain = asked(owner, demand={"users": 5}, pins=pins)["choice"]
    assert (plain["here"], plain["predicted"]["basis"]) == (True, "modelled")
    factor = Factor(1.3, 1.5, 4, 0, 300)
    monkeypatch.setattr(planning, "factors", lambda: {("llamacpp", "Q4_K_M", "rack-l4", TPOT): factor})
    learnt = asked(owner, demand={"users": 5}, pins=pins)["choice"]
    assert learnt["predicted"]["basis"] == "corrected"
    assert learnt["predicted"]["learnt"] == [{"factor": 1.3, "deployments": 4, "count": 300}]
    assert learnt["speed"] == pytest.approx(plain["speed"] / 1.3, rel=0.02)


def test_a_provider_that_does_not_answer_leaves_the_rest_of_the_world(owner: Client, provider: FakeProvider) -> None:
    provider.unavailable = True
    assert asked(owner, demand={"users": 5})["fits"] is True


@pytest.mark.parametrize(("divergence", "fits"), [(0.02, True), (0.3, False)])
def test_a_plan_here_takes_the_measured_quality_of_an_artefact(owner: Client, divergence: float, fits: bool) -> None:
    artefacts = make.Artefact.objects.across_orgs("the test's own")
    artefacts.update(quality=MEASURED | {"divergence": divergence})
    found = make_plan(artefacts.get().version, Needs(quality=Quality.HIGH), Pins())
    assert (found.choice is not None) is fits
    if found.choice is None:
        assert found.rejected[0].code == "measured_loss"
    else:
        assert "quality_measured" in {each.code for each in found.choice.reasons}
