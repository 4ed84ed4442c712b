"""The API server of the tests behaves like the real one where it matters, or tests that use it would prove nothing."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from tests.platform.compute.kubernetes.apiserver.api import Api
from tests.platform.compute.kubernetes.apiserver.failure import Failure
from tests.platform.compute.kubernetes.apiserver.resources import by_kind, discovery
from tests.platform.compute.kubernetes.apiserver.rights import allowed

Json = dict[str, Any]
SPACE = "space"
MAPS, PODS, SECRETS = by_kind("ConfigMap"), by_kind("Pod"), by_kind("Secret")


@pytest.fixture
def api() -> Api:
    made = Api("1.33")
    made.create(
        by_kind("Namespace"), None, {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": SPACE}}, "tests"
    )
    return made


def config(name: str = "a", labels: dict[str, str] | None = None, **data: str) -> Json:
    return {
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": {"name": name, **({"labels": labels} if labels else {})},
        "data": data,
    }


def a_pod(name: str = "p", **spec: Any) -> Json:
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": name},
        "spec": {"containers": [{"name": "c", "image": "i"}], **spec},
    }


def applied(api: Api, body: Json, manager: str, *, force: bool = False) -> Json:
    query = {"fieldManager": manager, "force": "true" if force else "false"}
    return api.apply(by_kind(body["kind"]), SPACE, body["metadata"]["name"], body, query)[0]


def refused(act: Callable[[], Any]) -> Failure:
    with pytest.raises(Failure) as raised:
        act()
    return raised.value


def test_a_write_on_an_old_version_is_a_conflict(api: Api) -> None:
    old = api.create(MAPS, SPACE, config(x="1"), "a")
    api.replace(MAPS, SPACE, "a", {**old, "data": {"x": "2"}}, "a")
    assert refused(lambda: api.replace(MAPS, SPACE, "a", {**old, "data": {"x": "3"}}, "a")).code == 409
    wrong_uid = {"metadata": {"uid": "another"}, "data": {"x": "4"}}
    assert refused(lambda: api.merge(MAPS, SPACE, "a", wrong_uid, "a")).code == 409
    assert refused(lambda: api.create(MAPS, SPACE, config(), "a")).reason == "AlreadyExists"
    assert refused(lambda: api.delete(MAPS, SPACE, "a", {"preconditions": {"uid": "another"}})).code == 409


def test_a_write_that_changes_nothing_is_no_change(api: Api) -> None:
    first = applied(api, config(x="1"), "a")
    assert applied(api, config(x="1"), "a")["metadata"]["resourceVersion"] == first["metadata"]["resourceVersion"]


@pytest.mark.parametrize(
    ("body", "field"),
    [
        (config("Upper"), "metadata.name"),
        (config("a", {"k": "x" * 64}), "metadata.labels.k"),
        (config("a", {"-k": "x"}), "metadata.labels.-k"),
        ({**config(), "spec": {}}, ""),
        (a_pod(unknown=1), "spec"),
        (
            a_pod(containers=[{"name": "c", "image": "i", "volumeMounts": [{"name": "v", "mountPath": "/x"}]}]),
            "spec.containers[c].volumeMounts",
        ),
        (
            a_pod(
                containers=[
                    {"name": "c", "image": "i", "resources": {"requests": {"cpu": "2"}, "limits": {"cpu": "1"}}}
                ]
            ),
            "spec.containers[c].resources.requests",
        ),
    ],
)
def test_what_is_wrong_is_named_by_its_field(api: Api, body: Json, field: str) -> None:
    failure = refused(lambda: api.create(by_kind(body["kind"]), SPACE, body, "a"))
    assert (failure.code, failure.reason) == (422, "Invalid")
    assert field in [cause["field"] for cause in failure.causes]


def test_a_pods_spec_cannot_be_changed(api: Api) -> None:
    api.create(PODS, SPACE, a_pod(), "a")
    changed = {"spec": {"containers": [{"name": "c", "image": "other"}]}}
    assert refused(lambda: api.merge(PODS, SPACE, "p", changed, "a")).code == 422
    api.merge(PODS, SPACE, "p", {"metadata": {"labels": {"k": "v"}}}, "a")


def test_appliers_own_what_they_said(api: Api) -> None:
    applied(api, config(x="1", y="1"), "first")
    conflict = refused(lambda: applied(api, config(x="2"), "second"))
    assert (conflict.code, conflict.causes[0]["reason"], conflict.causes[0]["field"]) == (
        409,
        "FieldManagerConflict",
        ".data.x",
    )
    applied(api, config(z="1"), "second")
    assert api.store.read("configmaps", SPACE, "a")["data"] == {"x": "1", "y": "1", "z": "1"}
    applied(api, config(x="2"), "second", force=True)
    assert api.store.read("configmaps", SPACE, "a")["data"] == {"x": "2", "y": "1"}, "what it no longer says is gone"
    applied(api, config(y="1"), "first")
    assert api.store.read("configmaps", SPACE, "a")["data"] == {"x": "2", "y": "1"}, "what another took over stays"


def test_a_plain_write_is_not_undone_by_an_applier_who_never_said_it(api: Api) -> None:
    applied(api, config(x="1"), "berth")
    api.merge(MAPS, SPACE, "a", {"metadata": {"annotations": {"note": "kept"}}}, "kubectl")
    applied(api, config(x="2"), "berth")
    assert api.store.read("configmaps", SPACE, "a")["metadata"]["annotations"] == {"note": "kept"}


def test_what_belongs_to_somebody_goes_with_its_owner(api: Api) -> None:
    owner = api.create(MAPS, SPACE, config(), "a")
    reference = {"apiVersion": "v1", "kind": "ConfigMap", "name": "a", "uid": owner["metadata"]["uid"]}
    owned = {
        "apiVersion": "v1",
        "kind": "Secret",
        "metadata": {"name": "s", "ownerReferences": [reference]},
        "type": "Opaque",
    }
    api.create(SECRETS, SPACE, owned, "a")
    api.delete(MAPS, SPACE, "a", {})
    assert api.store.all("secrets") == []


def test_a_running_pod_gets_its_time_and_never_more(api: Api) -> None:
    api.create(PODS, SPACE, a_pod(nodeName="n"), "a")
    first, gone = api.delete(PODS, SPACE, "p", {"gracePeriodSeconds": 50})
    assert not gone
    longer, _ = api.delete(PODS, SPACE, "p", {"gracePeriodSeconds": 500})
    assert longer["metadata"]["deletionTimestamp"] == first["metadata"]["deletionTimestamp"]
    shorter, _ = api.delete(PODS, SPACE, "p", {"gracePeriodSeconds": 5})
    assert shorter["metadata"]["deletionTimestamp"] < first["metadata"]["deletionTimestamp"]
    assert api.delete(PODS, SPACE, "p", {"gracePeriodSeconds": 0})[1]
    api.create(PODS, SPACE, a_pod("waiting"), "a")
    assert api.delete(PODS, SPACE, "waiting", {})[1], "a pod without a node goes at once"


def test_restricted_namespaces_refuse_pods_that_are_not(api: Api) -> None:
    label = {"metadata": {"labels": {"pod-security.kubernetes.io/enforce": "restricted"}}}
    api.merge(by_kind("Namespace"), None, SPACE, label, "a")
    failure = refused(lambda: api.create(PODS, SPACE, a_pod(hostNetwork=True), "a"))
    assert failure.code == 403
    assert "hostNetwork" in str(failure)
    assert "capabilities" in str(failure)


@pytest.mark.parametrize(
    ("selector", "found"),
    [
        ("", "abc"),
        ("k=1", "a"),
        ("k==1,l=x", "a"),
        ("k!=1", "bc"),
        ("k in (1, 2)", "ab"),
        ("k notin (1)", "bc"),
        ("k", "ab"),
        ("!k", "c"),
    ],
)
def test_label_selectors(api: Api, selector: str, found: str) -> None:
    for name, labels in {"a": {"k": "1", "l": "x"}, "b": {"k": "2"}, "c": {"l": "x"}}.items():
        api.create(MAPS, SPACE, config(name, labels), "a")
    items = api.list(MAPS, SPACE, {"labelSelector": selector})["items"]
    assert "".join(item["metadata"]["name"] for item in items) == found


def test_lists_come_in_pages_and_fields_select(api: Api) -> None:
    for name in "abcde":
        api.create(MAPS, SPACE, config(name), "a")
    page = api.list(MAPS, SPACE, {"limit": "2"})
    rest = api.list(MAPS, SPACE, {"limit": "3", "continue": page["metadata"]["continue"]})
    assert [item["metadata"]["name"] for item in page["items"] + rest["items"]] == list("abcde")
    assert "continue" not in rest["metadata"]
    assert len(api.list(MAPS, SPACE, {"fieldSelector": "metadata.name=c"})["items"]) == 1
    assert refused(lambda: api.list(MAPS, SPACE, {"fieldSelector": "data.x=1"})).code == 400


def test_a_watch_from_a_forgotten_version_is_told_so(api: Api) -> None:
    since = api.create(MAPS, SPACE, config(), "a")["metadata"]["resourceVersion"]
    api.create(MAPS, SPACE, config("b"), "a")
    api.store.forget_history()
    event = next(api.watch(MAPS, SPACE, {"resourceVersion": since}, 1.0))
    assert event
    assert (event["type"], event["object"]["code"]) == ("ERROR", 410)


def test_discovery_is_what_clients_ask_for(api: Api) -> None:
    assert (discovery("/version", "1.33") or {})["gitVersion"] == "v1.33.0"
    found: Any = discovery("/api/v1", "1.33")
    assert {"pods", "pods/log", "pods/eviction", "configmaps", "nodes"} <= {each["name"] for each in found["resources"]}
    groups: Any = discovery("/apis", "1.33")
    for group in groups["groups"]:
        assert discovery(f"/apis/{group['preferredVersion']['groupVersion']}", "1.33")
    assert discovery("/apis/nobody/v1", "1.33") is None


def test_rights_are_those_of_roles_and_bindings(api: Api) -> None:
    role = {
        "apiVersion": "rbac.authorization.k8s.io/v1",
        "kind": "Role",
        "metadata": {"name": "r"},
        "rules": [{"apiGroups": [""], "resources": ["pods"], "verbs": ["get"]}],
    }
    subject = {"kind": "ServiceAccount", "name": "s", "namespace": SPACE}
    ref = {"apiGroup": "rbac.authorization.k8s.io", "kind": "Role", "name": "r"}
    binding = {
        "apiVersion": "rbac.authorization.k8s.io/v1",
        "kind": "RoleBinding",
        "metadata": {"name": "b"},
        "roleRef": ref,
        "subjects": [subject],
    }
    for body in (role, binding):
        api.create(by_kind(str(body["kind"])), SPACE, body, "a")
    user = f"system:serviceaccount:{SPACE}:s"

    def may(verb: str, resource: str, namespace: str = SPACE, who: str = user) -> bool:
        return allowed(api.store, who, verb, "", resource, namespace, "x")

    assert may("get", "pods")
    assert not may("list", "pods")
    assert not may("get", "secrets")
    assert not may("get", "pods/log")
    assert not may("get", "pods", "other")
    assert not may("get", "pods", who="system:serviceaccount:other:s")
