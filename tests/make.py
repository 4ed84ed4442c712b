"""Plain typed builders for the control plane's tests. Each makes one row with sensible values; anything can be overridden.

    org = make.org()                      # "org-1", without members
    owner = make.member(org, "owner")     # with a user of their own
    client = make.client(owner.user)      # a signed-in django.test.Client that speaks JSON
    key, secret = make.key(owner)
    deployment = make.deployment(org)     # with model, version, artefact, revision
    make.usage_event(deployment, key, prompt_tokens=12, completion_tokens=3)

What is made here skips the services on purpose: it gives tests a state, not an act.
"""

from __future__ import annotations

import hashlib
import itertools
import time
from datetime import UTC, datetime
from decimal import Decimal
from typing import Any

from django.test import Client

from berth.billing.models import Budget
from berth.catalog.facts import FACTS_FORMAT, ArtefactFacts, AttentionGroup, ModelFacts, model_facts, to_json
from berth.catalog.models import (
    Artefact,
    ArtefactFile,
    ImportFile,
    Model,
    ModelImport,
    ModelVersion,
    SourceCredential,
)
from berth.deployments.models import Deployment, Replica, Revision, State
from berth.deployments.planning import plan_artefact, plan_json
from berth.keys.models import ApiKey
from berth.keys.secret import new_secret
from berth.metering.models import PendingEvent, UsageEvent
from berth.orgs.models import Member, Organisation, User
from berth.orgs.tenancy import new_id
from berth.planner.needs import Needs, Pins
from berth.planner.plan import plan
from berth.planner.tiers import Tier

NOON = datetime(2026, 11, 30, 12, 0, tzinfo=UTC)  # a fixed instant for tests that need one
PASSWORD = "correct horse battery staple"  # what `user(password=PASSWORD)` is usually given

# SmolLM2-135M-Instruct, as its header tells.
FACTS = ModelFacts(
    format=FACTS_FORMAT,
    architecture="llama",
    name="SmolLM2 135M Instruct",
    parameters=134_515_008,
    active_parameters=134_515_008,
    layers=30,
    embedding_length=576,
    feed_forward_length=1536,
    heads=9,
    context_length=8192,
    vocabulary=49_152,
    attention=(AttentionGroup(layers=30, kv_heads=3, key_length=64, value_length=64),),
    sliding_window=None,
    recurrent=False,
    has_chat_template=True,
    tied_embeddings=True,
)
FILE_FACTS = ArtefactFacts(
    format=FACTS_FORMAT,
    quantization="Q4_1",
    tensors=272,
    tensor_bytes=96_000_000,
    token_bytes=96_000_000,
    alignment=32,
    chat_template_bytes=400,
    chat_template_accepts=("user", "system", "assistant"),
)
TIER = Tier(key="cpu-local", kind="cpu", cores=4, memory_bytes=16 << 30, memory_bandwidth=40_000_000_000)

_numbers = itertools.count(1)


def user(email: str | None = None, *, name: str = "", password: str | None = None, operator: bool = False) -> User:
    """Without a password nobody can sign in by form; `client()` does not need one (and hashing takes its time)."""
    address = email or f"user-{next(_numbers)}@example.org"
    return User.objects.create_user(address, password, name=name, is_operator=operator)


def org(slug: str | None = None, **fields: Any) -> Organisation:
    """Begun in the month of NOON, whatever today's date is: its statements begin with that month."""
    slug = slug or f"org-{next(_numbers)}"
    made = Organisation.objects.create(**{"slug": slug, "name": f"Organisation {slug}"} | fields)
    if "created_at" not in fields:
        made.created_at = NOON
        made.save(update_fields=["created_at"])
    return made


def member(organisation: Organisation, role: str = "developer", person: User | None = None) -> Member:
    return Member.objects.create(org=organisation, user=person or user(), role=role)


def client(person: User | None = None, **options: Any) -> Client:
    """A signed-in client. Send JSON as `client.post(url, data, "application/json")`."""
    made = Client(**options)
    if person is not None:
        made.force_login(person)
    return made


def confirmed(signed_in: Client, *, ago: float = 0.0) -> Client:
    """As if its user had given the password so many seconds ago."""
    session = signed_in.session
    session["account_authentication_methods"] = [{"method": "password", "at": time.time() - ago}]
    session.save()
    return signed_in


def key(maker: Member, **fields: Any) -> tuple[ApiKey, str]:
    """The key and its secret. It belongs to the maker's organisation."""
    secret = new_secret()
    values = {
        "org": maker.org,
        "name": f"key-{next(_numbers)}",
        "digest": secret.digest,
        "hint": secret.hint,
        "scopes": ["inference"],
        "created_by": maker.user,
    }
    return ApiKey.objects.create(**values | fields), secret.text


def model(organisation: Organisation, name: str | None = None, **fields: Any) -> Model:
    return Model.objects.create(org=organisation, name=name or f"model-{next(_numbers)}", **fields)


def version(owner: Model, number: int = 1, **fields: Any) -> ModelVersion:
    values = {
        "org": owner.org,
        "model": owner,
        "number": number,
        "source": "sample",
        "facts": to_json(FACTS),
    }
    return ModelVersion.objects.create(**values | fields)


def artefact(of: ModelVersion, **fields: Any) -> Artefact:
    """With one file of that size; its content is not in the store."""
    values = {
        "org": of.org,
        "version": of,
        "format": "gguf",
        "quantization": "Q4_1",
        "engines": ["llamacpp"],
        "size": 98_000_000,
        "facts": to_json(FILE_FACTS),
    }
    made = Artefact.objects.create(**values | fields)
    digest = hashlib.sha256(made.pk.bytes).hexdigest()
    ArtefactFile.objects.create(
        org=of.org, artefact=made, name="model.gguf", role="weights", size=made.size, sha256=digest
    )
    return made


def model_import(organisation: Organisation, source: str = "upload", **fields: Any) -> ModelImport:
    """An upload of one file that still receives its one part, unless something is overridden."""
    size = fields.pop("size", 8)
    values = {
        "org": organisation,
        "name": f"import-{next(_numbers)}",
        "source": source,
        "request": {},
        "state": "receiving",
    }
    run = ModelImport.objects.create(**values | fields)
    if source == "upload":
        ImportFile.objects.create(org=organisation, run=run, name=f"model-{next(_numbers)}.gguf", size=size)
        ModelImport.objects.for_org(organisation).filter(pk=run.pk).update(bytes_total=size)
        run.refresh_from_db()
    return run


def source_credential(organisation: Organisation, **fields: Any) -> SourceCredential:
    """Whose seal opens nothing; services make real ones."""
    values = {
        "org": organisation,
        "name": f"credential-{next(_numbers)}",
        "kind": "hub",
        "host": "hub.example",
        "sealed": b"x",
    }
    return SourceCredential.objects.create(**values | fields)


def deployment(organisation: Organisation, name: str | None = None, **fields: Any) -> Deployment:
    """Ready, with its first revision, but without a replica."""
    values = {"org": organisation, "name": name or f"deployment-{next(_numbers)}", "state": State.READY}
    made = Deployment.objects.create(**values | fields)
    made.revision = revision(made)
    made.save(update_fields=["revision"])
    return made


def revision(of: Deployment, number: int = 1, **fields: Any) -> Revision:
    """Of a model made for it unless `artefact` is given."""
    files = fields.pop("artefact", None) or artefact(version(model(of.org)))
    planned = plan(model_facts(files.version.facts), [plan_artefact(files)], Needs(), [TIER], Pins())
    values = {
        "org": of.org,
        "deployment": of,
        "number": number,
        "version": files.version,
        "artefact": files,
        "engine": "llamacpp",
        "tier": TIER.key,
        "context_length": 2048,
        "slots": 2,
        "threads": 2,
        "memory": 400_000_000,
        "needs": {},
        "plan": {**plan_json(planned), "pins": {}},
    }
    return Revision.objects.create(**values | fields)


def replica(of: Deployment, ordinal: int = 0, **fields: Any) -> Replica:
    """Ready, at an address where nothing listens."""
    values = {
        "org": of.org,
        "deployment": of,
        "revision": of.revision,
        "name": f"{of.pk}-1-{ordinal}-{next(_numbers)}",
        "ordinal": ordinal,
        "phase": "ready",
        "host": "127.0.0.1",
        "port": 9,
        "ready_at": NOON,
    }
    return Replica.objects.create(**values | fields)


def budget(organisation: Organisation, **fields: Any) -> Budget:
    """A hundred a month for the whole organisation."""
    values = {
        "org": organisation, "scope": "org", "subject_id": organisation.pk, "period": "month", "amount": Decimal(100), "version": 1,
    }  # fmt: skip
    return Budget.objects.create(**values | fields)


def usage_event(of: Deployment, by: ApiKey, **fields: Any) -> UsageEvent:
    """A plain request that went well, not rated yet."""
    values = {
        "id": new_id(),
        "org": of.org,
        "gateway": "gw-1",
        "key_id": by.pk,
        "deployment_id": of.pk,
        "revision": 1,
        "endpoint": "chat/completions",
        "stream": False,
        "accepted_at": NOON,
        "duration_ms": 120.0,
        "outcome": "ok",
        "status": 200,
        "counted_by": "engine",
        "prompt_tokens": 10,
        "cached_tokens": 0,
        "completion_tokens": 5,
        "reasoning_tokens": 0,
    }
    made = UsageEvent.objects.create(**values | fields)
    PendingEvent.objects.create(id=made.pk, org=made.org)
    return made
