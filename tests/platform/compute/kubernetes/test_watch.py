"""The copy of the cluster stays true: over bookmarks, broken connections, forgotten versions and late words."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from typing import Any

import msgspec
import pytest

from berth.compute.launch import LaunchSpec
from berth.compute.provider import ProviderUnavailable
from berth.compute.providers.kubernetes import mirror as mirror_module
from berth.compute.providers.kubernetes.client import ApiClient
from berth.compute.providers.kubernetes.credentials import credentials_of
from berth.compute.providers.kubernetes.kinds import CONFIG_MAP
from berth.compute.providers.kubernetes.mirror import Mirror
from tests.platform.compute.kubernetes.apiserver.failure import Failure
from tests.platform.compute.kubernetes.apiserver.resources import by_kind
from tests.platform.compute.kubernetes.apiserver.server import ApiServer
from tests.platform.compute.kubernetes.world import NAMESPACE, World, cluster, get_ready
from tests.platform.compute.provider_contract import SECRET
from tests.runtime.agents import eventually

Json = dict[str, Any]


@pytest.fixture
def server(tmp_path: Any) -> Iterator[ApiServer]:
    made = ApiServer(tmp_path, bookmark_seconds=0.1)
    made.api.create(
        by_kind("Namespace"), None, {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": NAMESPACE}}, "tests"
    )
    yield made
    made.close()


@pytest.fixture
def client(server: ApiServer) -> ApiClient:
    return ApiClient(credentials_of(cluster(kubeconfig=str(server.kubeconfig()))), "tests")


@pytest.fixture
def copy(client: ApiClient) -> Iterator[Mirror]:
    made = Mirror(client, CONFIG_MAP, NAMESPACE, "part=mine")
    yield made
    made.close()


def write(server: ApiServer, name: str, **data: str) -> Json:
    body = {
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": {"name": name, "labels": {"part": "mine"}},
        "data": data,
    }
    return server.api.apply(by_kind("ConfigMap"), NAMESPACE, name, body, {"fieldManager": "tests", "force": "true"})[0]


def remove(server: ApiServer, name: str) -> None:
    server.api.delete(by_kind("ConfigMap"), NAMESPACE, name, {})


def shown(copy: Mirror) -> dict[str, Any]:
    return {body["metadata"]["name"]: body.get("data") for body in copy.all()}


def same(server: ApiServer, copy: Mirror) -> Callable[[], bool]:
    def holds() -> bool:
        real = {
            body["metadata"]["name"]: body.get("data")
            for body in server.api.store.all("configmaps")
            if body["metadata"]["labels"]["part"] == "mine"
        }
        return shown(copy) == real

    return holds


def test_it_follows_what_happens(server: ApiServer, copy: Mirror) -> None:
    write(server, "a", x="1")
    assert shown(copy) == {"a": {"x": "1"}}
    write(server, "b", x="2")
    write(server, "a", x="3")
    remove(server, "b")
    eventually(lambda: shown(copy) == {"a": {"x": "3"}}, "it has followed")
    server.api.merge(by_kind("ConfigMap"), NAMESPACE, "a", {"metadata": {"labels": {"part": "other"}}}, "tests")
    eventually(lambda: shown(copy) == {}, "what no longer matches is gone")
    assert copy.times_listed == 1


def test_after_a_broken_connection_it_goes_on_from_the_last_bookmark(server: ApiServer, copy: Mirror) -> None:
    write(server, "a")
    assert set(shown(copy)) == {"a"}
    marked = server.api.store.version
    other = {"apiVersion": "v1", "kind": "Secret", "metadata": {"name": "s"}, "type": "Opaque"}
    server.api.create(by_kind("Secret"), NAMESPACE, other, "tests")  # nothing that it watches, but the version rises
    eventually(lambda: int(copy._resume) > marked, "a bookmark has come")
    server.cut.set()
    write(server, "b")
    server.api.store.lock.acquire()  # forget what was before the bookmark
    server.api.store._forgotten = int(copy._resume)
    server.api.store.lock.release()
    server.cut.clear()
    eventually(same(server, copy), "it has caught up")
    assert copy.times_listed == 1


def test_a_version_that_the_server_forgot_means_reading_everything_again(server: ApiServer, copy: Mirror) -> None:
    write(server, "a")
    assert set(shown(copy)) == {"a"}
    server.cut.set()
    eventually(lambda: copy._problem or True, "it is cut")
    write(server, "b")
    remove(server, "a")
    write(server, "c")
    server.api.store.forget_history()
    server.cut.clear()
    eventually(lambda: set(shown(copy)) == {"b", "c"}, "it has caught up")
    assert copy.times_listed == 2


def test_what_this_process_wrote_is_seen_at_once_and_no_late_word_undoes_it(server: ApiServer, copy: Mirror) -> None:
    old = write(server, "a", x="1")
    shown(copy)
    new = write(server, "a", x="2")
    copy.put(new)
    copy.put(old)
    assert shown(copy) == {"a": {"x": "2"}}
    copy.drop(new)
    copy.put(new)
    assert shown(copy) == {}
    remove(server, "a")
    again = write(server, "a", x="9")
    copy.put(again)
    assert shown(copy) == {"a": {"x": "9"}}, "another object of the same name is another object"


def test_resync_reads_everything_again(server: ApiServer, copy: Mirror, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(mirror_module, "RESYNC_SECONDS", 0.0)
    monkeypatch.setattr(mirror_module, "_WATCH_SECONDS", 1)
    write(server, "a")
    shown(copy)
    eventually(lambda: copy.times_listed >= 2, "it was read again")
    eventually(same(server, copy), "and is the same")


def test_a_server_that_is_away_is_said_when_what_is_known_gets_old(server: ApiServer, client: ApiClient) -> None:
    now = [0.0]
    copy = Mirror(client, CONFIG_MAP, NAMESPACE, "part=mine", clock=lambda: now[0])
    write(server, "a")
    assert set(shown(copy)) == {"a"}

    def refuse(method: str, path: str) -> None:
        raise Failure(503, "ServiceUnavailable", "etcd is away")

    server.before = refuse
    server.cut.set()
    eventually(lambda: copy._problem, "it has noticed")
    assert set(shown(copy)) == {"a"}, "for a while the last state does"
    now[0] += 120
    with pytest.raises(ProviderUnavailable):
        copy.all()
    assert copy.known() is not None
    server.before = lambda method, path: None
    server.cut.clear()
    eventually(lambda: not copy._problem, "it is back")
    assert set(shown(copy)) == {"a"}
    copy.close()


def test_a_server_that_was_never_there_is_said_at_once(tmp_path: Any) -> None:
    server = ApiServer(tmp_path)
    made = cluster(kubeconfig=str(server.kubeconfig()))
    server.close()
    copy = Mirror(ApiClient(credentials_of(made), "tests"), CONFIG_MAP, NAMESPACE)
    with pytest.raises(ProviderUnavailable, match="cluster tests"):
        copy.all()
    assert copy.known() is None
    copy.close()


def test_many_writers_at_once_leave_no_difference(server: ApiServer, copy: Mirror) -> None:
    shown(copy)

    def work(number: int) -> None:
        for turn in range(15):
            name = f"o{(number + turn) % 5}"
            if turn % 4 == 3:
                try:
                    remove(server, name)
                except Failure as failure:
                    assert failure.code == 404
            else:
                write(server, name, by=f"{number}-{turn}")

    threads = [threading.Thread(target=work, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    eventually(same(server, copy), "they are the same")


def test_two_workers_that_start_the_same_replica_start_one(world: World, spec: LaunchSpec) -> None:
    providers = [world.provider(), world.provider()]
    failures: list[BaseException] = []

    def start(number: int) -> None:
        try:
            for turn in range(2):
                providers[number % 2].start(msgspec.structs.replace(spec, replica=f"dep-1-3-{turn}-0"), SECRET)
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=start, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert failures == []
    assert len(world.api.store.all("pods")) == len(world.api.store.all("configmaps")) == 2
    for provider in providers:
        eventually(lambda provider=provider: len(provider.observe("dep-1")) == 2, "both see all")


def test_an_idle_look_costs_the_api_server_nothing(world: World, spec: LaunchSpec) -> None:
    provider = world.provider()
    provider.start(spec, SECRET)
    get_ready(provider, spec)
    provider.observe_all()
    world.server.requests.clear()
    for _ in range(100):
        provider.observe("dep-1")
        provider.observe_all()
        provider.offers()
    assert [what for _, verb, what in world.server.requests if verb != "watch" and what != "pods/log"] == []
    assert sum(what == "pods/log" for _, _, what in world.server.requests) <= 100
