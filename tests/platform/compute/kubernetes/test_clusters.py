"""What an operator says of clusters is read strictly, and credentials are used as they say and no further."""

from __future__ import annotations

import base64
import datetime
import json
import os
import ssl
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml

from berth.compute.provider import ProviderError, ProviderUnavailable
from berth.compute.providers.kubernetes import credentials as credentials_module
from berth.compute.providers.kubernetes.client import ApiClient
from berth.compute.providers.kubernetes.clusters import clusters_from, read_clusters
from berth.compute.providers.kubernetes.credentials import credentials_of
from berth.compute.providers.kubernetes.errors import Refusal
from berth.compute.providers.kubernetes.kinds import CONFIG_MAP, POD
from tests.platform.compute.kubernetes.apiserver.failure import Failure
from tests.platform.compute.kubernetes.apiserver.resources import by_kind
from tests.platform.compute.kubernetes.apiserver.server import ApiServer
from tests.platform.compute.kubernetes.world import IMAGE, NAMESPACE, cluster
from tests.runtime.agents import eventually

Json = dict[str, Any]
TIER: Json = {"key": "cpu", "cores": 2, "memory_gib": 4}
GOOD: Json = {
    "name": "main",
    "namespace": "berth-runtime",
    "image": IMAGE,
    "in_cluster": True,
    "models_claim": "models",
    "tier": [TIER],
}


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"image": "registry.example/berth-runtime:latest"}, "digest"),
        ({"in_cluster": False}, "either in_cluster = true or a kubeconfig"),
        ({"kubeconfig": "/x"}, "either in_cluster = true or a kubeconfig"),
        ({"namespace": "Upper"}, "DNS labels"),
        ({"models_claim": None}, "models_claim, or cache_gib"),
        ({"tier": []}, "no tier"),
        ({"colour": "red"}, "colour"),
        ({"engine_port": 80}, "ports"),
        ({"engine_port": 9000, "status_port": 9000}, "differ"),
        ({"tier": [{**TIER, "key": "A B"}]}, "key"),
        ({"tier": [{**TIER, "cores": 0}]}, "at least 1 core"),
        ({"tier": [{**TIER, "gpus": 2}]}, "belong together"),
        ({"tier": [{**TIER, "gpu": "l4", "gpus": 1, "gpu_resource": "nvidia.com/gpu.shared"}]}, "tenants"),
        ({"tier": [{**TIER, "node_selector": {"a b": "c"}}]}, "labels"),
        ({"tier": [{**TIER, "price_per_hour": "cheap"}]}, "decimal"),
        ({"tier": [{**TIER, "tolerations": [{"effect": "Sometimes"}]}]}, "tolerations"),
        ({"tier": [TIER, TIER]}, "same key"),
    ],
)
@pytest.mark.threat("E4")
def test_what_cannot_work_is_refused_with_a_sentence(changes: Json, said: str) -> None:
    body = {key: value for key, value in {**GOOD, **changes}.items() if value is not None}
    with pytest.raises(ProviderError, match="The list of clusters") as refused:
        clusters_from({"cluster": [body]})
    assert said in str(refused.value)


def test_keys_are_unique_over_all_clusters() -> None:
    with pytest.raises(ProviderError, match="unique over all clusters"):
        clusters_from({"cluster": [GOOD, {**GOOD, "name": "second"}]})
    with pytest.raises(ProviderError, match="same name"):
        clusters_from({"cluster": [GOOD, {**GOOD, "tier": [{**TIER, "key": "other"}]}]})
    with pytest.raises(ProviderError, match="no cluster"):
        clusters_from({"cluster": []})


def test_the_file_itself(tmp_path: Path) -> None:
    with pytest.raises(ProviderError, match="cannot be read"):
        read_clusters(tmp_path / "nothing")
    (tmp_path / "bad").write_text("cluster = [")
    with pytest.raises(ProviderError, match="no TOML"):
        read_clusters(tmp_path / "bad")


# Credentials


@pytest.fixture
def server(tmp_path: Path) -> Any:
    made = ApiServer(tmp_path)
    made.api.create(
        by_kind("Namespace"), None, {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": NAMESPACE}}, "tests"
    )
    yield made
    made.close()


def edited(server: ApiServer, how: Callable[[Json, Json], None]) -> str:
    """A kubeconfig after `how` has changed its cluster and its user."""
    path = server.kubeconfig(name="edited.yaml")
    config = yaml.safe_load(path.read_text())
    how(config["clusters"][0]["cluster"], config["users"][0]["user"])
    path.write_text(yaml.safe_dump(config))
    return str(path)


def client_of(kubeconfig: str, **changes: Any) -> ApiClient:
    made = cluster(kubeconfig=kubeconfig, **changes)
    return ApiClient(credentials_of(made), made.name)


def listed(client: ApiClient) -> int:
    return len(client.list(POD, NAMESPACE)[0])


@pytest.mark.threat("E3")
def test_only_a_server_that_proves_itself_is_talked_to(server: ApiServer, tmp_path: Path) -> None:
    assert listed(client_of(str(server.kubeconfig()))) == 0
    (tmp_path / "other").mkdir()
    other = ApiServer(tmp_path / "other")
    try:
        wrong = edited(server, lambda place, user: place.update({"certificate-authority": str(other.authority)}))
        with pytest.raises(ProviderUnavailable, match="SSLCertVerificationError"):
            listed(client_of(wrong))
    finally:
        other.close()
    named = edited(server, lambda place, user: place.update(server=server.url.replace("127.0.0.1", "localhost")))
    with pytest.raises(ProviderUnavailable, match="SSLCertVerificationError"):
        listed(client_of(named))
    for change, said in (
        ({"insecure-skip-tls-verify": True}, "insecure-skip-tls-verify"),
        ({"server": server.url.replace("https", "http")}, "not https"),
    ):
        with pytest.raises(ProviderError, match=said):
            client_of(edited(server, lambda place, user, change=change: place.update(change)))
    assert (
        credentials_of(cluster(kubeconfig=str(server.kubeconfig()))).context.minimum_version >= ssl.TLSVersion.TLSv1_2
    )


def test_authorities_and_tokens_may_be_inline_or_in_files(server: ApiServer, tmp_path: Path) -> None:
    def inline(place: Json, user: Json) -> None:
        place["certificate-authority-data"] = base64.b64encode(server.authority.read_bytes()).decode()
        del place["certificate-authority"], user["token"]
        (tmp_path / "token").write_text("admin-token\n")
        user["tokenFile"] = "token"

    assert listed(client_of(edited(server, inline))) == 0


def test_a_token_that_is_replaced_is_read_anew(
    server: ApiServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def filed(place: Json, user: Json) -> None:
        del user["token"]
        user["tokenFile"] = str(tmp_path / "token")

    (tmp_path / "token").write_text("old")
    client = client_of(edited(server, filed))
    with pytest.raises(ProviderUnavailable, match="credentials"):
        listed(client)
    (tmp_path / "token").write_text("admin-token")
    monkeypatch.setattr(credentials_module, "_REREAD_SECONDS", 0.0)
    assert listed(client) == 0


def plugin(place: Path, answer: Json, mark: Path) -> Json:
    program = place / "plugin.py"
    lines = (
        "import json, os, pathlib",
        f"pathlib.Path({str(mark)!r}).write_text(json.dumps(dict(os.environ)))",
        f"print({json.dumps(json.dumps(answer))})",
    )
    program.write_text("\n".join(lines))
    return {
        "command": sys.executable,
        "args": [str(program)],
        "apiVersion": "client.authentication.k8s.io/v1",
        "env": [{"name": "PROFILE", "value": "p"}],
    }


@pytest.mark.threat("E3")
def test_a_credential_program_runs_only_where_it_is_allowed(
    server: ApiServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    mark = tmp_path / "ran"
    soon = (datetime.datetime.now(datetime.UTC) + datetime.timedelta(hours=1)).isoformat()
    answer = {"status": {"token": "admin-token", "expirationTimestamp": soon}}
    monkeypatch.setenv("DATABASE_URL", "postgresql://secret")

    def by_program(place: Json, user: Json) -> None:
        del user["token"]
        user["exec"] = plugin(tmp_path, answer, mark)

    kubeconfig = edited(server, by_program)
    with pytest.raises(ProviderError, match="allow_exec"):
        client_of(kubeconfig)
    assert not mark.exists()
    assert listed(client_of(kubeconfig, allow_exec=True)) == 0
    environment = json.loads(mark.read_text())
    assert environment["PROFILE"] == "p"
    assert "DATABASE_URL" not in environment
    assert "KUBERNETES_EXEC_INFO" in environment


def test_a_credential_program_that_fails_is_said(server: ApiServer, tmp_path: Path) -> None:
    def by_program(place: Json, user: Json) -> None:
        del user["token"]
        user["exec"] = plugin(tmp_path, {"status": {}}, tmp_path / "ran")

    with pytest.raises(ProviderUnavailable, match="did not work"):
        listed(client_of(edited(server, by_program), allow_exec=True))


def test_what_a_kubeconfig_lacks_is_named(server: ApiServer, tmp_path: Path) -> None:
    (tmp_path / "empty").write_text("")
    (tmp_path / "lacking").write_text("current-context: x\ncontexts: []\n")
    (tmp_path / "broken").write_text("{")
    for name, said in (
        ("empty", "is empty"),
        ("lacking", "lacks .*contexts: x"),
        ("broken", "no YAML"),
        ("none", "cannot be read"),
    ):
        with pytest.raises(ProviderError, match=said):
            client_of(str(tmp_path / name))


def test_in_a_pod_its_own_account_is_used(server: ApiServer, tmp_path: Path) -> None:
    folder = tmp_path / "account"
    folder.mkdir()
    (folder / "ca.crt").write_bytes(server.authority.read_bytes())
    (folder / "token").write_text("admin-token")
    port = server.url.rsplit(":", 1)[1]
    environ = {"KUBERNETES_SERVICE_HOST": "127.0.0.1", "KUBERNETES_SERVICE_PORT": port}
    assert listed(ApiClient(credentials_module._in_cluster(folder, environ), "here")) == 0
    with pytest.raises(ProviderError, match="does not run in a pod"):
        credentials_module._in_cluster(folder, {})


# The client


def test_a_connection_that_went_stale_is_made_anew(server: ApiServer) -> None:
    client = client_of(str(server.kubeconfig()))
    assert listed(client) == 0
    kept = client._kept.connection[1]
    kept.sock.close()
    assert listed(client) == 0
    assert client._kept.connection[1] is not kept


def test_a_busy_server_is_asked_again_and_one_that_stays_busy_is_said(
    server: ApiServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    from berth.compute.providers.kubernetes import client as client_module

    monkeypatch.setattr(client_module, "_LONGEST_PAUSE", 0.01)
    busy = [2]

    def before(method: str, path: str) -> None:
        if busy[0]:
            busy[0] -= 1
            raise Failure(429, "TooManyRequests", "too many requests", retry=1)

    server.before = before
    client = client_of(str(server.kubeconfig()))
    assert listed(client) == 0
    busy[0] = 1000
    with pytest.raises(ProviderUnavailable, match="TooManyRequests"):
        listed(client)


def test_writers_that_get_in_the_way_are_outwaited_and_another_object_is_left_alone(server: ApiServer) -> None:
    client = client_of(str(server.kubeconfig()))
    made = client.apply(CONFIG_MAP, NAMESPACE, {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "one"}})
    busy = [2]

    def before(method: str, path: str) -> None:
        if method == "PATCH" and busy[0]:
            busy[0] -= 1
            told = 'Operation cannot be fulfilled on configmaps "one": the object has been modified'
            raise Failure(409, "Conflict", told)

    server.before = before
    changed = client.merge(CONFIG_MAP, NAMESPACE, "one", {"metadata": {"annotations": {"a": "1"}}})
    assert changed is not None
    assert changed["metadata"]["annotations"]["a"] == "1"
    patch = {"metadata": {"uid": "of-another", "annotations": {"a": "2"}}}
    assert client.merge(CONFIG_MAP, NAMESPACE, "one", patch) is None
    now = client.get(CONFIG_MAP, NAMESPACE, "one")
    assert now is not None
    assert (now["metadata"]["uid"], now["metadata"]["annotations"]["a"]) == (made["metadata"]["uid"], "1")


def test_refusals_say_which_field_and_not_what_was_in_it(server: ApiServer) -> None:
    client = client_of(str(server.kubeconfig()))
    body = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "x", "labels": {"k": "SECRET" * 20}}}
    with pytest.raises(Refusal) as refused:
        client.apply(CONFIG_MAP, NAMESPACE, body)
    assert (refused.value.code, refused.value.fields) == (422, ("metadata.labels.k",))
    assert "SECRET" not in str(refused.value)
    assert "metadata.labels.k" in str(refused.value)


def test_lists_are_read_to_their_end(server: ApiServer, monkeypatch: pytest.MonkeyPatch) -> None:
    from berth.compute.providers.kubernetes import client as client_module

    monkeypatch.setattr(client_module, "_PAGE", 3)
    client = client_of(str(server.kubeconfig()))
    for number in range(8):
        client.apply(
            CONFIG_MAP, NAMESPACE, {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": f"c{number}"}}
        )
    found, version = client.list(CONFIG_MAP, NAMESPACE)
    assert [body["metadata"]["name"] for body in found] == [f"c{number}" for number in range(8)]
    assert int(version) > 0


def test_deleting_what_is_gone_or_another_is_no_error(server: ApiServer) -> None:
    client = client_of(str(server.kubeconfig()))
    client.delete(CONFIG_MAP, NAMESPACE, "nothing")
    made = client.apply(CONFIG_MAP, NAMESPACE, {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "c"}})
    client.delete(CONFIG_MAP, NAMESPACE, "c", uid="another")
    assert client.get(CONFIG_MAP, NAMESPACE, "c") is not None
    client.delete(CONFIG_MAP, NAMESPACE, "c", uid=made["metadata"]["uid"])
    assert client.get(CONFIG_MAP, NAMESPACE, "c") is None


def test_a_process_that_forked_off_makes_its_own_connection(server: ApiServer) -> None:
    client = client_of(str(server.kubeconfig()))
    assert listed(client) == 0
    parents = client._kept.connection[1]
    child = os.fork()
    if child == 0:
        try:
            fine = listed(client) == 0 and client._kept.connection[1] is not parents
        finally:
            os._exit(0 if fine else 1)
    assert eventually(lambda: os.waitpid(child, os.WNOHANG)[0], "it has ended")
    assert listed(client) == 0
