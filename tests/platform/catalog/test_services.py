"""Adding models: idempotent by content, versions counted, hostile names and files refused."""

from __future__ import annotations

from pathlib import Path

import pytest
from django.core.management import CommandError, call_command

from berth.catalog.facts import artefact_facts, model_facts
from berth.catalog.models import Artefact, ArtefactFile, Model, ModelVersion
from berth.catalog.services import import_path, import_sample
from berth.catalog.store import store
from berth.web.errors import ApiError, Forbidden
from tests import make
from tests.platform.catalog.gguf_bytes import LLAMA, STRING, File, entry

pytestmark = pytest.mark.django_db


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "tiny.gguf"
    path.write_bytes(File().packed())
    return path


def test_the_sample_once_for_each_organisation() -> None:
    org, other = make.org(), make.org()
    owner = make.member(org, "owner").user
    version = import_sample(org, owner)
    assert import_sample(org, owner) == version
    assert import_sample(other, None) != version
    assert (version.model.name, version.number, version.licence) == ("smollm2-135m-instruct", 1, "Apache-2.0")
    assert model_facts(version.facts).parameters == 134_515_008
    artefact = Artefact.objects.for_org(org).get(version=version)
    assert (artefact.quantization, artefact.engines) == ("Q4_1", ["llamacpp", "ollama"])
    assert "user" in artefact_facts(artefact.facts).chat_template_accepts
    kept = ArtefactFile.objects.for_org(org).get(artefact=artefact)
    assert store().holds(kept.sha256, kept.size)


def test_a_lost_file_comes_back_with_the_next_import(file: Path) -> None:
    org, operator = make.org(), make.user(operator=True)
    version = import_path(org, operator, str(file), "tiny")
    kept = ArtefactFile.objects.for_org(org).get()
    store().remove(kept.sha256)
    assert import_path(org, operator, str(file), "tiny") == version
    assert store().verify(kept.sha256)


def test_another_file_is_another_version(file: Path) -> None:
    org, operator = make.org(), make.user(operator=True)
    import_path(org, operator, str(file), "tiny")
    file.write_bytes(File(data=b"\1" * 256).packed())
    second = import_path(org, operator, str(file), "tiny")
    assert second.number == 2
    assert Model.objects.for_org(org).count() == 1


def test_paths_are_for_operators(file: Path) -> None:
    org = make.org()
    with pytest.raises(Forbidden):
        import_path(org, make.member(org, "owner").user, str(file), "tiny")
    assert not ModelVersion.objects.for_org(org).exists()


@pytest.mark.threat("M6")
@pytest.mark.threat("M9")
@pytest.mark.parametrize(
    ("path", "name"),
    [
        ("/tmp/../etc/passwd.gguf", "tiny"),
        ("tiny.gguf", "tiny"),
        ("/etc/passwd", "tiny"),
        ("/tmp/a b.gguf", "tiny"),
        ("/tmp/a.gguf\0", "tiny"),
        ("/tmp/tiny.gguf", "--trust-remote-code"),
        ("/tmp/tiny.gguf", "$(id)"),
        ("/tmp/tiny.gguf", "a\nb"),
        ("/tmp/tiny.gguf", "../x"),
        ("/tmp/tiny.gguf", "LD_PRELOAD"),
    ],
)
def test_hostile_names_and_paths(path: str, name: str) -> None:
    with pytest.raises(ApiError) as refused:
        import_path(make.org(), make.user(operator=True), path, name)
    assert refused.value.status == 422


@pytest.mark.threat("M5")
def test_a_refused_file_leaves_nothing(file: Path) -> None:
    org = make.org()
    file.write_bytes(File(metadata=[*LLAMA, entry("tokenizer.chat_template", STRING, "{% include 'x' %}")]).packed())
    with pytest.raises(ApiError) as refused:
        import_path(org, make.user(operator=True), str(file), "tiny")
    assert (refused.value.status, refused.value.code) == (422, "unsafe_chat_template")
    assert refused.value.params["file"] == "tiny.gguf"
    assert not Model.objects.for_org(org).exists()


def test_the_command(file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    org = make.org()
    with pytest.raises(CommandError, match="operator"):
        call_command("import_model", org.slug, str(file), name="tiny")
    make.user(operator=True)
    call_command("import_model", org.slug, str(file), name="tiny", licence="MIT")
    assert "version 1" in capsys.readouterr().out
    assert ModelVersion.objects.for_org(org).get().licence == "MIT"
    with pytest.raises(CommandError, match="name"):
        call_command("import_model", org.slug, str(file), name="-x")
