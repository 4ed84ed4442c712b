"""Where files come from: the hub, buckets, addresses, paths; what each refuses, and in which words."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from berth.catalog.sources.choosing import choose
from berth.catalog.sources.hub import HubSource
from berth.catalog.sources.path import PathSource
from berth.catalog.sources.s3 import S3Access, S3Source
from berth.catalog.sources.source import RemoteFile, Source, SourceRefused, SourceTrouble
from berth.catalog.sources.url import UrlSource
from berth.web.errors import ApiError
from berth.web.outbound import OutboundRefused
from tests.platform.catalog import hub_files
from tests.platform.catalog.fake_hub import Hub
from tests.seaweed import BUCKET, KEY_ID, SECRET, Seaweed, client


def names(source: Source) -> list[str]:
    return [each.name for each in source.listing().files]


def content(source: Source, name: str, begin: int = 0, end: int | None = None) -> bytes:
    file = next(each for each in source.listing().files if each.name == name)
    with source.open(file, begin, end) as opened:
        assert opened.begin == begin
        return b"".join(opened.chunks)


class TestHub:
    def test_a_repository_is_pinned_and_its_model_chosen(self, hub: Hub) -> None:
        files = hub_files.sharded(README__md=b"---\nlicense: mit\n---")
        extra = {"original/consolidated.00.pth": b"x", "modeling_x.py": b"x", "pytorch_model.bin": b"x", ".gitattributes": b"x",
                 "onnx/model.onnx": b"x"}  # fmt: skip
        hub.add("acme/tiny", files | extra, licence="mit", branches={"main": "a" * 40, "v1": "c" * 40})
        listing = HubSource(hub.endpoint, "acme/tiny", "v1").listing()
        assert listing.pins == {"revision": "c" * 40}
        assert listing.origin == f"acme/tiny@{'c' * 40}"
        assert listing.licence == "mit"
        assert {each.name for each in listing.files} == set(hub_files.sharded())
        large = next(each for each in listing.files if each.name == "model-00001-of-00002.safetensors")
        assert len(large.sha256) == 64 and large.size == len(files[large.name])

    def test_files_come_by_redirect_without_the_token(self, hub: Hub) -> None:
        files = hub_files.model()
        hub.add("acme/tiny", files, private=True, token="hf_secret")
        source = HubSource(hub.endpoint, "acme/tiny", token="hf_secret")
        assert content(source, "model.safetensors") == files["model.safetensors"]
        assert content(source, "model.safetensors", 100, 200) == files["model.safetensors"][100:200]
        assert content(source, "config.json") == files["config.json"]
        storage = [headers for place, _, headers in hub.asked if place == "_storage"]
        assert storage and not any("authorization" in headers for headers in storage)

    @pytest.mark.parametrize(
        ("options", "token", "revision", "code"),
        [
            ({"gated": True, "token": "yes"}, "", "main", "hub_gated"),
            ({"gated": True, "token": "yes"}, "no", "main", "hub_gated"),
            ({"private": True, "token": "yes"}, "", "main", "hub_not_found"),
            ({}, "", "v9", "hub_revision_not_found"),
        ],
    )
    def test_gates(self, hub: Hub, options: dict[str, Any], token: str, revision: str, code: str) -> None:
        hub.add("acme/tiny", hub_files.model(), **options)
        with pytest.raises(SourceRefused) as refused:
            HubSource(hub.endpoint, "acme/tiny", revision, token=token).listing()
        assert refused.value.code == code
        assert token == "no" or token not in refused.value.message or not token

    def test_an_unknown_one(self, hub: Hub) -> None:
        with pytest.raises(SourceRefused, match="hub_not_found"):
            HubSource(hub.endpoint, "acme/none").listing()

    @pytest.mark.threat("M9")
    @pytest.mark.parametrize("repository", ["../etc", "a/b/c", "a b/c", "--help", "a/..", "a/b?x=1", "http://x/y", ""])
    def test_ids_are_ids(self, repository: str) -> None:
        with pytest.raises(SourceRefused):
            HubSource("https://hub.example", repository)

    def test_trouble_is_told_apart_from_refusals(self, hub: Hub) -> None:
        hub.add("acme/tiny", hub_files.model())
        source = HubSource(hub.endpoint, "acme/tiny")
        hub.behaviour.fail = [503, 429]
        for _ in range(2):
            with pytest.raises(SourceTrouble, match="status_"):
                content(source, "model.safetensors")
        assert content(source, "model.safetensors")

    @pytest.mark.threat("G6")
    def test_a_mirror_is_a_public_address_or_named_by_the_operator(self) -> None:
        for endpoint in ("https://127.0.0.1:1", "http://hub.example", "https://169.254.169.254"):
            with pytest.raises(OutboundRefused):
                HubSource(endpoint, "acme/tiny").listing()


@pytest.fixture
def bucket(s3: Seaweed, settings: Any) -> S3Access:
    settings.OUTBOUND_PRIVATE_HOSTS = [s3.host]
    asks: Any = client(s3)
    for name, raw in hub_files.model().items():
        asks.put_object(Bucket=BUCKET, Key=f"ours/tiny model/{name}", Body=raw)
    asks.put_object(Bucket=BUCKET, Key="ours/tiny model/checkpoint.pt", Body=b"x")
    asks.put_object(Bucket=BUCKET, Key="ours/one.gguf", Body=b"GGUF" + b"x" * 5000)
    return S3Access(KEY_ID, SECRET, s3.endpoint, "us-east-1")


class TestS3:
    def test_a_folder_and_a_file(self, bucket: S3Access) -> None:
        folder = S3Source(f"s3://{BUCKET}/ours/tiny model/", bucket)
        assert names(folder) == sorted(hub_files.model())
        assert content(folder, "config.json") == hub_files.model()["config.json"]
        assert names(S3Source(f"s3://{BUCKET}/ours/tiny model", bucket)) == sorted(hub_files.model())
        one = S3Source(f"s3://{BUCKET}/ours/one.gguf", bucket)
        assert names(one) == ["one.gguf"]
        assert content(one, "one.gguf", 2, 6) == b"UFxx"

    def test_a_wrong_secret_an_absent_bucket_an_empty_folder(self, bucket: S3Access) -> None:
        wrong = S3Access(KEY_ID, "wrong", bucket.endpoint, bucket.region)
        for uri, access, code in (
            (f"s3://{BUCKET}/ours/", wrong, "s3_forbidden"),
            ("s3://no-such-bucket/x/", bucket, "s3_no_bucket"),
            (f"s3://{BUCKET}/nothing/", bucket, "source_not_found"),
        ):
            with pytest.raises(SourceRefused) as refused:
                S3Source(uri, access).listing()
            assert refused.value.code == code
            assert "wrong" not in refused.value.message and SECRET not in refused.value.message

    def test_an_object_that_was_replaced_is_noticed(self, bucket: S3Access, s3: Seaweed) -> None:
        asks: Any = client(s3)
        asks.put_object(Bucket=BUCKET, Key="ours/changing.gguf", Body=b"GGUF" + b"a" * 100)
        source = S3Source(f"s3://{BUCKET}/ours/changing.gguf", bucket)
        file = source.listing().files[0]
        asks.put_object(Bucket=BUCKET, Key="ours/changing.gguf", Body=b"GGUF" + b"b" * 100)
        with pytest.raises(SourceTrouble, match="source_changed"), source.open(file, 0, 10):
            pass

    @pytest.mark.threat("G6")
    def test_a_tenants_endpoint_is_never_dialled_when_it_is_private(self, s3: Seaweed, settings: Any) -> None:
        settings.OUTBOUND_PRIVATE_HOSTS = []
        for endpoint in (s3.endpoint, "https://127.0.0.1", "https://169.254.169.254", "https://[::ffff:7f00:1]"):
            with pytest.raises(OutboundRefused):
                S3Source(f"s3://{BUCKET}/ours/", S3Access(KEY_ID, SECRET, endpoint, "us-east-1")).listing()

    @pytest.mark.parametrize(
        "uri",
        ["s3://", "s3://UPPER/x", "s3://b/../x", "https://b/x", "s3://b", "s3://bucket/a/../b", "s3://bucket/a?x"],
    )
    def test_addresses_are_addresses(self, uri: str, bucket: S3Access) -> None:
        with pytest.raises(SourceRefused):
            S3Source(uri, bucket)


class TestUrl:
    def test_a_file(self, hub: Hub) -> None:
        hub.plain["/files/model.gguf"] = b"GGUF" + b"x" * 3000
        source = UrlSource([f"http://{hub.storage_place}/files/model.gguf?token=1"])
        listing = source.listing()
        assert (listing.files[0].name, listing.files[0].size) == ("model.gguf", 3004)
        assert "token" not in listing.origin
        assert content(source, "model.gguf", 3, 5) == b"Fx"

    def test_a_token_goes_to_its_host_only(self, hub: Hub) -> None:
        hub.plain["/m/model.gguf"] = b"GGUF"
        url = f"http://{hub.storage_place}/m/model.gguf"
        UrlSource([url], token="secret", host="127.0.0.1").listing()
        UrlSource([url], token="secret", host="other.example").listing()
        assert [headers.get("authorization") for _, _, headers in hub.asked] == ["Bearer secret", None]

    @pytest.mark.parametrize(
        "urls",
        [
            [],
            ["https://example.org/"],
            ["https://example.org/a b.gguf"],
            ["ftp://example.org/x.gguf"],
            ["https://u:p@example.org/x.gguf"],
        ],
    )
    def test_what_is_no_address_of_a_file(self, urls: list[str]) -> None:
        with pytest.raises(ApiError):
            UrlSource(urls).listing()


class TestPath:
    def test_a_folder_without_links(self, tmp_path: Path) -> None:
        folder = tmp_path / "models" / "tiny"
        hub_files.written(hub_files.model(), folder)
        (folder / "chat_template.jinja").symlink_to("/etc/passwd")
        source = PathSource(str(folder), [tmp_path / "models"])
        assert names(source) == sorted(hub_files.model())
        assert content(source, "config.json", 1, 5) == hub_files.model()["config.json"][1:5]

    @pytest.mark.threat("M6")
    def test_roots_hold_also_against_links_in_the_way(self, tmp_path: Path) -> None:
        (tmp_path / "inside").mkdir()
        (tmp_path / "outside").mkdir()
        (tmp_path / "outside" / "x.gguf").write_bytes(b"GGUF")
        (tmp_path / "inside" / "link").symlink_to(tmp_path / "outside")
        roots = [tmp_path / "inside"]
        for path in (
            tmp_path / "outside" / "x.gguf",
            tmp_path / "inside" / "link" / "x.gguf",
            tmp_path / "inside" / "link",
        ):
            with pytest.raises(SourceRefused, match="path_outside_roots"):
                PathSource(str(path), roots)
        for text in ("x.gguf", f"{tmp_path}/inside/../outside/x.gguf", f"{tmp_path}/inside\0"):
            with pytest.raises(SourceRefused, match="invalid_path"):
                PathSource(text, roots)


def remote(*locations: str) -> list[RemoteFile]:
    return [RemoteFile(each.rpartition("/")[2], each, 1) for each in locations]


@pytest.mark.parametrize(
    ("there", "pattern", "chosen"),
    [
        (["a.Q4_K_M.gguf", "a.Q8_0.gguf", "README.md"], "*Q4_K_M*", ["a.Q4_K_M.gguf"]),
        (["a-00001-of-00002.gguf", "a-00002-of-00002.gguf", "b.gguf"], "a-*", ["a-00001-of-00002.gguf", "a-00002-of-00002.gguf"]),
        (["Q8/a-00001-of-00001.gguf", "Q4/a.gguf"], "Q8/*", ["a-00001-of-00001.gguf"]),
        (["config.json", "model.safetensors", "consolidated.safetensors", "tokenizer.json"], "",
         ["config.json", "model.safetensors", "tokenizer.json"]),
        (["config.json", "model.safetensors", "model.gguf"], "", ["config.json", "model.safetensors"]),
        (["config.json", "model.safetensors", "model.gguf"], "*.gguf", ["model.gguf"]),
        (["adapter_config.json", "adapter_model.safetensors", "tokenizer.json"], "", ["adapter_config.json", "adapter_model.safetensors"]),
        (["cpu/genai_config.json", "cpu/model.onnx", "cpu/model.onnx.data", "cpu/tokenizer.json"], "cpu/*",
         ["genai_config.json", "model.onnx", "model.onnx.data", "tokenizer.json"]),
    ],
)  # fmt: skip
def test_choosing(there: list[str], pattern: str, chosen: list[str]) -> None:
    assert [each.name for each in choose(remote(*there), pattern)] == chosen


@pytest.mark.parametrize(
    ("there", "code", "params"),
    [
        (["a.Q4_K_M.gguf", "a.Q8_0.gguf"], "several_models", {"choices": ["a.Q4_K_M.gguf", "a.Q8_0.gguf"], "count": 2}),
        (["config.json", "pytorch_model.bin"], "pickle", {}),
        (["README.md", "cpu/model.onnx"], "no_weights", {"folders": ["cpu"]}),
        ([], "no_weights", {"folders": []}),
    ],
)
def test_what_cannot_be_chosen(there: list[str], code: str, params: dict[str, Any]) -> None:
    with pytest.raises(SourceRefused) as refused:
        choose(remote(*there))
    assert (refused.value.code, refused.value.params) == (code, params)
