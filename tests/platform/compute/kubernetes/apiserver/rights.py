"""Who may do what: RBAC's rules, as roles and bindings in the store say."""

from __future__ import annotations

from typing import Any

from tests.platform.compute.kubernetes.apiserver.store import Store

Json = dict[str, Any]


def allowed(store: Store, user: str, verb: str, group: str, resource: str, namespace: str | None, name: str) -> bool:
    """`user` is "system:serviceaccount:NAMESPACE:NAME", or "admin", who may do anything."""
    if user == "admin":
        return True
    for binding in store.all("clusterrolebindings"):
        if _binds(binding, user) and any(
            _permits(r, verb, group, resource, name) for r in _rules(store, binding, None)
        ):
            return True
    for binding in store.all("rolebindings", namespace) if namespace else []:
        if _binds(binding, user) and any(
            _permits(r, verb, group, resource, name) for r in _rules(store, binding, namespace)
        ):
            return True
    return False


def _binds(binding: Json, user: str) -> bool:
    return any(
        subject["kind"] == "ServiceAccount"
        and user == f"system:serviceaccount:{subject['namespace']}:{subject['name']}"
        for subject in binding.get("subjects") or []
    )


def _rules(store: Store, binding: Json, namespace: str | None) -> list[Json]:
    ref = binding["roleRef"]
    role = (
        store.find("clusterroles", "", ref["name"])
        if ref["kind"] == "ClusterRole"
        else store.find("roles", namespace or "", ref["name"])
    )
    return list((role or {}).get("rules") or [])


def _permits(rule: Json, verb: str, group: str, resource: str, name: str) -> bool:
    names = rule.get("resourceNames")
    return (
        (verb in rule["verbs"] or "*" in rule["verbs"])
        and (group in rule["apiGroups"] or "*" in rule["apiGroups"])
        and (resource in rule["resources"] or "*" in rule["resources"])
        and (not names or name in names)
    )
