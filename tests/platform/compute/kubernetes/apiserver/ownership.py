"""Server-side apply: who said what of an object. Lists with keys are merged by them, other lists are one value."""

from __future__ import annotations

import copy
import json
from typing import Any

from tests.platform.compute.kubernetes.apiserver.failure import Failure

Json = dict[str, Any]
Path = tuple[str, ...]  # "f:spec", 'k:{"name":"runtime"}'

KEYS = {
    "containers": ("name",),
    "initContainers": ("name",),
    "volumes": ("name",),
    "env": ("name",),
    "ports": ("containerPort", "protocol"),
    "volumeMounts": ("mountPath",),
    "imagePullSecrets": ("name",),
    "topologySpreadConstraints": ("topologyKey", "whenUnsatisfiable"),
    "ownerReferences": ("uid",),
    "conditions": ("type",),
}
_NOT_OWNED = {
    ("f:apiVersion",),
    ("f:kind",),
    *(
        ("f:metadata", f"f:{name}")
        for name in ("name", "namespace", "uid", "resourceVersion", "creationTimestamp", "generation")
    ),
    ("f:metadata", "f:managedFields"),
}


def leaves(value: Any, path: Path = (), key: str = "") -> dict[Path, Any]:
    """Every field that `value` sets, with its value."""
    if path in _NOT_OWNED:
        return {}
    if isinstance(value, dict) and (value or not path):
        found: dict[Path, Any] = {}
        for name, each in value.items():
            found |= leaves(each, (*path, f"f:{name}"), name)
        return found
    if isinstance(value, list) and key in KEYS and value:
        found = {}
        for each in value:
            item = (*path, _key(each, key))
            found[item] = None  # the item itself
            found |= leaves(each, item)
        return found
    return {path: value}


def apply(live: Json | None, wanted: Json, manager: str, owners: dict[str, set[Path]], *, force: bool) -> Json:
    """The object after `manager` has said `wanted`; `owners` is changed along. Raises Failure 409."""
    mine = f"{manager}/Apply"
    before = owners.get(mine, set())
    said = leaves(wanted)
    live = copy.deepcopy(live) if live is not None else {}
    now = leaves(live)
    causes = []
    for path, value in said.items():
        for other, owned in owners.items():
            if other != mine and path in owned and path in now and now[path] != value:
                if force:
                    owned.discard(path)
                else:
                    causes.append(
                        {
                            "reason": "FieldManagerConflict",
                            "message": f'conflict with "{other.split("/")[0]}"',
                            "field": readable(path),
                        }
                    )
    if causes:
        raise Failure(409, "Conflict", f"Apply failed with {len(causes)} conflicts", causes)
    others = set().union(*(owned for name, owned in owners.items() if name != mine)) if owners else set()
    for path in sorted(before - said.keys() - others, key=len, reverse=True):
        _remove(live, path)
    for path, value in said.items():
        _set(live, path, value)
    for name in ("apiVersion", "kind"):
        live[name] = wanted[name]
    live.setdefault("metadata", {})
    for name in ("name", "namespace"):
        if name in wanted["metadata"]:
            live["metadata"][name] = wanted["metadata"][name]
    owners[mine] = set(said)
    return live


def changed(before: Json | None, after: Json, manager: str, owners: dict[str, set[Path]]) -> None:
    """Somebody wrote plainly: what differs is theirs now."""
    old, new = leaves(before or {}), leaves(after)
    different = {path for path in new if path not in old or old[path] != new[path]}
    for owned in owners.values():
        owned -= different
        owned &= set(new)
    owners.setdefault(f"{manager}/Update", set()).update(different)


def managed_fields(owners: dict[str, set[Path]], api_version: str) -> list[Json]:
    shown = []
    for name, owned in owners.items():
        if owned:
            manager, operation = name.rsplit("/", 1)
            tree: Json = {}
            for path in sorted(owned):
                at = tree
                for part in path:
                    at = at.setdefault(part, {})
            shown.append(
                {
                    "manager": manager,
                    "operation": operation,
                    "apiVersion": api_version,
                    "fieldsType": "FieldsV1",
                    "fieldsV1": tree,
                }
            )
    return shown


def readable(path: Path) -> str:
    return "".join(f".{part[2:]}" if part.startswith("f:") else f"[{part[2:]}]" for part in path)


def _key(item: Json, name: str) -> str:
    keys = {key: item.get(key, "TCP" if key == "protocol" else None) for key in KEYS[name]}
    return "k:" + json.dumps(keys, sort_keys=True)


def _find(items: list[Json], part: str) -> Json | None:
    wanted = json.loads(part[2:])
    for item in items:
        if all(item.get(key, "TCP" if key == "protocol" else None) == value for key, value in wanted.items()):
            return item
    return None


def _set(body: Any, path: Path, value: Any) -> None:
    for number, part in enumerate(path):
        last = number == len(path) - 1
        if part.startswith("k:"):
            item = _find(body, part)
            if item is None:
                item = json.loads(part[2:])
                body.append(item)
            body = item
        elif last:
            body[part[2:]] = copy.deepcopy(value)
        else:
            empty: Any = [] if path[number + 1].startswith("k:") else {}
            if not isinstance(body.get(part[2:]), type(empty)):
                body[part[2:]] = empty
            body = body[part[2:]]


def _remove(body: Any, path: Path) -> None:
    for part in path[:-1]:
        body = _find(body, part) if part.startswith("k:") else body.get(part[2:])
        if body is None:
            return
    if path[-1].startswith("k:"):
        item = _find(body, path[-1])
        if item is not None:
            body.remove(item)
    else:
        body.pop(path[-1][2:], None)
