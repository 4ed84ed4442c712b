"""Rules of syntax that keep tenants apart and doors shut. Each has a control: a line of code that must be found."""

from __future__ import annotations

import ast
import textwrap
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
RAW_SQL_FILES = {  # parameters only, never text put together; each says why the ORM does not do
    "platform/berth/metering/ingest.py",
    "platform/berth/billing/usage.py",
    "platform/berth/billing/locks.py",
    "platform/berth/billing/spending.py",
    "platform/berth/deployments/reconcile.py",
}
HTTP_CLIENTS = {"aiohttp", "http.client", "httpx", "requests", "urllib.request", "urllib3"}
CODE_LOADERS = {"cloudpickle", "dill", "joblib", "marshal", "pickle", "shelve"}
MAY_ASK_BY_HTTP = (  # loopback, or their very purpose
    "platform/berth/host/",
    "platform/berth/compute/providers/kubernetes/client.py",
    "platform/berth/web/outbound.py",  # the guarded door
    "platform/berth/catalog/client.py",  # the upload command, which runs on its user's machine
    "platform/berth_gateway/",
    "runtime/",
)
TENANT_DOORS = {"for_org", "across_orgs", "create", "bulk_create"}


def sources() -> list[tuple[str, ast.Module]]:
    found = []
    for root in ("platform", "runtime"):
        for path in sorted((ROOT / root).rglob("*.py")):
            if "__pycache__" not in path.parts and "migrations" not in path.parts:
                found.append((path.relative_to(ROOT).as_posix(), ast.parse(path.read_text())))
    return found


def tenant_models(trees: list[tuple[str, ast.Module]]) -> set[str]:
    """Every class that derives from OrgOwned."""
    classes = [node for _, tree in trees for node in ast.walk(tree) if isinstance(node, ast.ClassDef)]
    return {node.name for node in classes if any(_dotted(base).endswith("OrgOwned") for base in node.bases)}


def _dotted(node: ast.AST) -> str:
    if isinstance(node, ast.Attribute):
        return f"{_dotted(node.value)}.{node.attr}"
    return node.id if isinstance(node, ast.Name) else ""


def problems(name: str, tree: ast.Module, tenants: set[str]) -> Iterator[str]:
    constants = {
        target.id: node.value
        for node in ast.walk(tree)
        if isinstance(node, ast.Assign)
        for target in node.targets
        if isinstance(target, ast.Name)
    }
    aliases = {
        alias.asname or alias.name: alias.name
        for node in ast.walk(tree)
        if isinstance(node, ast.ImportFrom)
        for alias in node.names
    }
    for node in ast.walk(tree):
        for problem in (*_imports(name, node), *_calls(name, node), *_tenancy(node, tenants, aliases, constants)):
            yield f"{name}:{getattr(node, 'lineno', 0)}: {problem}"


def _imports(name: str, node: ast.AST) -> Iterator[str]:
    modules: list[str] = []
    if isinstance(node, ast.Import):
        modules = [alias.name for alias in node.names]
    elif isinstance(node, ast.ImportFrom):
        modules = [node.module or "", *(f"{node.module}.{alias.name}" for alias in node.names)]
    for module in modules:
        if module in CODE_LOADERS:
            yield f"{module} runs what it reads (threats M1, D1)"
        if module in HTTP_CLIENTS and not name.startswith(MAY_ASK_BY_HTTP):
            yield f"{module}: the control plane asks nobody by HTTP (threat G6)"
        if module.endswith("safestring.mark_safe") or module == "django.contrib.admin":
            yield f"{module} is not used here (threats A7, A11)"


def _calls(name: str, node: ast.AST) -> Iterator[str]:
    if isinstance(node, ast.Assign) and any(isinstance(t, ast.Name) and t.id == "fields" for t in node.targets):
        if isinstance(node.value, ast.Constant) and node.value.value == "__all__":
            yield "a serializer names its fields (threat K3)"
        return
    if not isinstance(node, ast.Call):
        return
    called = _dotted(node.func)
    last = node.func.attr if isinstance(node.func, ast.Attribute) else called
    if called in {"eval", "exec", "os.system", "os.popen", "torch.load", "yaml.load", "mark_safe", "Environment"}:
        yield f"{called}() is not used here"
    if any(
        k.arg == "shell" and not (isinstance(k.value, ast.Constant) and k.value.value is False) for k in node.keywords
    ):
        yield "no shell anywhere (threat M9)"
    for keyword in node.keywords:
        spread = _dotted(keyword.value) if keyword.arg is None else ""
        if spread.startswith(("request.", "self.request.")):
            yield f"**{spread}: request data never becomes argument names (threats A8, K3)"
    if last in {"extra", "raw"} and isinstance(node.func, ast.Attribute) and not _is_log(called):
        yield f".{last}() is not used here (threat A8)"
    if last == "RawSQL" or (last in {"execute", "executemany", "cursor"} and name.startswith("platform/berth/")):
        if name not in RAW_SQL_FILES and "host/" not in name:
            yield f"{last}: raw SQL only in {', '.join(sorted(RAW_SQL_FILES))} (threat A8)"
        elif last.startswith("execute") and node.args and not _is_constant_sql(node.args[0]):
            yield "SQL text is constant; values are parameters (threat A8)"


def _is_constant_sql(node: ast.expr) -> bool:
    """A string, a name, or `TEMPLATE.format(part=TABLE[key])` with a table of constants."""
    if isinstance(node, ast.Call):
        parts = [k.value for k in node.keywords]
        tables = all(
            isinstance(p, ast.Subscript) and isinstance(p.value, ast.Name) and p.value.id.isupper() for p in parts
        )
        return isinstance(node.func, ast.Attribute) and node.func.attr == "format" and not node.args and tables
    return isinstance(node, ast.Constant | ast.Name)


def _is_log(called: str) -> bool:
    return called.startswith(("log.", "logger."))


def _tenancy(
    node: ast.AST, tenants: set[str], aliases: dict[str, str], constants: dict[str, ast.expr]
) -> Iterator[str]:
    if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Attribute):
        model = _dotted(node.value.value).rsplit(".", 1)[-1]
        if aliases.get(model, model) in tenants:
            if node.value.attr == "objects" and node.attr not in TENANT_DOORS:
                yield f"{model}.objects.{node.attr}: go through for_org() or say across_orgs(why) (threat A1)"
            if node.value.attr in {"_default_manager", "_base_manager"}:
                yield f"{model}.{node.value.attr} goes around for_org() (threat A1)"
    if isinstance(node, ast.Call):
        if _dotted(node.func).rsplit(".", 1)[-1] in {"get_object_or_404", "get_list_or_404"}:
            yield "get_object_or_404 goes around for_org() (threat A1)"
        if isinstance(node.func, ast.Attribute) and node.func.attr == "across_orgs":
            reason: ast.expr | None = node.args[0] if node.args else None
            if isinstance(reason, ast.Name):
                reason = constants.get(reason.id)
            if not (isinstance(reason, ast.Constant) and isinstance(reason.value, str) and len(reason.value) > 10):
                yield "across_orgs() says why, as a plain string"


@pytest.mark.threat("A1")
@pytest.mark.threat("A8")
@pytest.mark.threat("D1")
def test_the_code_keeps_the_rules() -> None:
    trees = sources()
    tenants = tenant_models(trees)
    assert {"Member", "ApiKey", "Deployment", "UsageEvent", "LedgerEntry"} <= tenants
    found = [problem for name, tree in trees for problem in problems(name, tree, tenants)]
    assert not found, "\n".join(found)


@pytest.mark.parametrize(
    "line",
    [
        "ApiKey.objects.get(pk=1)",
        "ApiKey.objects.filter(org=org)",
        "from berth.keys.models import ApiKey as K\nK.objects.all()",
        "models.ApiKey.objects.first()",
        "ApiKey._default_manager.all()",
        "ApiKey.objects.across_orgs('')",
        "ApiKey.objects.across_orgs(reason)",
        "get_object_or_404(ApiKey, pk=pk)",
        "import pickle",
        "from marshal import loads",
        "import requests",
        "from urllib import request",
        "eval(text)",
        "subprocess.run(cmd, shell=True)",
        "os.system('ls')",
        "cursor.execute(f'select {x}')",
        "cursor.execute('select ' + x)",
        "cursor.execute(SQL.format(x=request.GET['x']))",
        "from django.utils.safestring import mark_safe",
        "rows.extra(where=['1=1'])",
        "rows.raw('select 1')",
        "RawSQL('1', ())",
        "connection.cursor()",
        "class Meta:\n    fields = '__all__'",
        "service(**request.data)",
        "rows.filter(**self.request.query_params)",
        "yaml.load(text)",
        "jinja2.Environment()\nEnvironment()",
    ],
)
def test_each_rule_finds_what_it_forbids(line: str) -> None:
    tree = ast.parse(textwrap.dedent(line))
    assert list(problems("platform/berth/keys/services.py", tree, {"ApiKey"})), line


@pytest.mark.parametrize(
    "line",
    [
        "ApiKey.objects.for_org(org).get(pk=1)",
        "ApiKey.objects.across_orgs('gateways serve every organisation')",
        "ApiKey.objects.create(org=org)",
        "Organisation.objects.filter(slug=slug)",
        "log.info('done', extra={'count': 1})",
        "subprocess.run(cmd, shell=False)",
    ],
)
def test_what_is_allowed_is_not_found(line: str) -> None:
    assert not list(problems("platform/berth/keys/services.py", ast.parse(line), {"ApiKey"}))


@pytest.mark.threat("D1")
def test_tasks_take_ids_by_keyword_and_travel_as_json() -> None:
    from django.conf import settings

    assert settings.CELERY_ACCEPT_CONTENT == ["json"] and settings.CELERY_TASK_SERIALIZER == "json"
    assert settings.CELERY_TASK_IGNORE_RESULT is True
    tasks = 0
    for name, tree in sources():
        for node in ast.walk(tree):
            if isinstance(node, ast.FunctionDef) and any("task" in ast.dump(d) for d in node.decorator_list):
                if not name.endswith("tasks.py"):
                    continue
                tasks += 1
                positional = [a.arg for a in (*node.args.posonlyargs, *node.args.args) if a.arg != "self"]
                assert not positional, f"{name}: {node.name} takes {positional} by position"
                named = {a.arg for a in node.args.kwonlyargs}
                assert not named & {"secret", "token", "password", "prompt", "body", "key"}, f"{name}: {node.name}"
    assert tasks
