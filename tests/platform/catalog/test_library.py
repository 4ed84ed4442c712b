"""The library's facts are those that the planner counts from the same shapes, and its entries are imports that can begin."""

from __future__ import annotations

import pytest

from berth.catalog import library
from berth.catalog.sample import NAME
from berth.catalog.services import NAME_FORM
from berth.catalog.sources.hub import REPOSITORY
from berth.planner.catalogue import model_by_name
from berth.planner.needs import read_needs
from tests import make

MODELS = library.models()


def test_each_stands_once_and_the_sample_needs_no_network() -> None:
    assert len({model.key for model in MODELS}) == len({model.name for model in MODELS}) == len(MODELS) >= 20
    assert [model.name for model in MODELS if model.offline] == [NAME]
    assert all(bool(model.repository) != model.offline for model in MODELS)


@pytest.mark.parametrize("model", MODELS, ids=lambda model: model.key)
def test_facts(model: library.LibraryModel) -> None:
    assert NAME_FORM.fullmatch(model.name)
    assert model.offline or REPOSITORY.fullmatch(model.repository)
    assert set(model.good_for) == {"en", "zh"} and all(model.good_for.values())
    assert model.licence and model.licence_url.startswith("https://") and model.source
    assert model.provenance in {"read", "entered"}
    read_needs(model.needs)
    assert model.needs["context_length"] <= model.context_length
    if model.shape:
        facts = model_by_name(model.shape)
        assert facts is not None
        assert model.parameters == facts.parameters
        assert model.active_parameters == (facts.active_parameters if facts.experts else facts.parameters)


@pytest.mark.django_db
def test_everybody_who_is_signed_in_sees_it() -> None:
    answer = make.client(make.user()).get("/api/v1/library")
    assert answer.status_code == 200
    assert [each["key"] for each in answer.json()] == [model.key for model in MODELS]
    assert make.client().get("/api/v1/library").status_code == 401
