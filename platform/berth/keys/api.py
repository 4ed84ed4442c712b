"""Routes of API keys."""

from __future__ import annotations

from datetime import datetime
from typing import Any
from uuid import UUID

from django.urls import path
from django.utils import timezone
from drf_spectacular.utils import extend_schema, extend_schema_field
from rest_framework import serializers
from rest_framework.request import Request
from rest_framework.response import Response

from berth.keys import services
from berth.keys.models import ApiKey, KeyKind
from berth.keys.networks import LONGEST, MOST
from berth.orgs.idempotency import idempotent
from berth.orgs.limits import LimitsIn, LimitsOut
from berth.orgs.permissions import Action
from berth.orgs.serializers import UserOut
from berth.orgs.views import OrgView
from berth.web.pagination import page, page_of
from berth.web.serializers import NoBody, PageQuery, StrictSerializer, read_body


class KeyOut(serializers.ModelSerializer[ApiKey]):
    created_by = UserOut()
    deployment_ids = serializers.ListField(
        child=serializers.UUIDField(), allow_null=True, help_text="null: every deployment of the organisation"
    )
    status = serializers.SerializerMethodField()
    limits = LimitsOut()
    networks = serializers.ListField(
        child=serializers.CharField(), help_text="CIDR; where it may be used from. Empty: anywhere"
    )

    class Meta:
        model = ApiKey
        fields = [
            "id", "name", "kind", "hint", "scopes", "deployment_ids", "created_by", "created_at", "expires_at", "revoked_at",
            "last_used_at", "status", "limits", "networks",
        ]  # fmt: skip

    @extend_schema_field(serializers.ChoiceField(choices=["active", "expired", "revoked"]))
    def get_status(self, key: ApiKey) -> str:
        return status_of(key, timezone.now())


class ChangeRefOut(serializers.Serializer[Any]):
    id = serializers.IntegerField(help_text="For GET /orgs/{org}/gateways?change=: on how many gateways it has arrived")


class ChangedKeyOut(KeyOut):
    change = ChangeRefOut()

    class Meta(KeyOut.Meta):
        fields = [*KeyOut.Meta.fields, "change"]


class NewKeyOut(ChangedKeyOut):
    """Answered once: the secret is not kept."""

    secret = serializers.CharField()

    class Meta(ChangedKeyOut.Meta):
        fields = [*ChangedKeyOut.Meta.fields, "secret"]


class PlaygroundKeyOut(serializers.Serializer[Any]):
    secret = serializers.CharField()
    expires_at = serializers.DateTimeField()
    change = ChangeRefOut()


def _networks(**how: Any) -> serializers.ListField:
    """Networks in CIDR form, or single addresses."""
    return serializers.ListField(
        child=serializers.CharField(max_length=LONGEST),
        max_length=MOST,
        help_text="CIDR or single addresses, IPv4 and IPv6; where the key may be used from. Empty: anywhere",
        **how,
    )


class NewKeyIn(StrictSerializer):
    name = serializers.CharField(max_length=80)
    kind = serializers.ChoiceField(choices=[KeyKind.MEMBER.value, KeyKind.SERVICE.value], default=KeyKind.MEMBER.value)
    scopes = serializers.ListField(child=serializers.CharField(max_length=32), max_length=20, default=["inference"])
    deployment_ids = serializers.ListField(child=serializers.UUIDField(), max_length=100, allow_null=True, default=None)
    expires_at = serializers.DateTimeField(allow_null=True, default=None)
    limits = LimitsIn(required=False)
    networks = _networks(default=[])


class KeyChangeIn(StrictSerializer):
    """What is absent stays."""

    name = serializers.CharField(required=False, max_length=80)
    limits = LimitsIn(required=False)
    networks = _networks(required=False)


def status_of(key: ApiKey, now: datetime) -> str:
    if key.revoked_at is not None:
        return "revoked"
    return "expired" if key.expires_at is not None and key.expires_at <= now else "active"


class KeysView(OrgView):
    actions = {"GET": Action.KEYS_READ_OWN, "POST": Action.KEYS_CREATE}

    @extend_schema(operation_id="list_keys", responses=page_of(KeyOut), parameters=[PageQuery])
    def get(self, request: Request, org: str) -> Response:
        """One's own keys; for owners and admins all. Revoked and expired ones too."""
        return page(request, services.visible_keys(self.member), KeyOut)

    @extend_schema(operation_id="create_key", request=NewKeyIn, responses={201: NewKeyOut})
    @idempotent
    def post(self, request: Request, org: str) -> Response:
        """The answer holds the secret, once. A key never reaches further than its maker."""
        issued = services.create_key(self.member, now=timezone.now(), **read_body(NewKeyIn, request))
        content = {**KeyOut(issued.key).data, "secret": issued.secret, "change": {"id": issued.change}}
        return Response(content, status=201)


class KeyView(OrgView):
    actions = {"GET": Action.KEYS_READ_OWN, "PATCH": Action.KEYS_CREATE}

    @extend_schema(operation_id="get_key", responses=KeyOut)
    def get(self, request: Request, org: str, key_id: UUID) -> Response:
        return Response(KeyOut(services.get_key(self.member, key_id)).data)

    @extend_schema(operation_id="change_key", request=KeyChangeIn, responses=ChangedKeyOut)
    def patch(self, request: Request, org: str, key_id: UUID) -> Response:
        """Its name, its limits and where it may be used from; everything else is for ever."""
        changed = services.change_key(self.member, key_id, **read_body(KeyChangeIn, request))
        return Response({**KeyOut(changed.key).data, "change": {"id": changed.change}})


class RevokeView(OrgView):
    actions = {"POST": Action.KEYS_CREATE}

    @extend_schema(operation_id="revoke_key", request=NoBody, responses=ChangedKeyOut)
    def post(self, request: Request, org: str, key_id: UUID) -> Response:
        """For good, and on every gateway within a second; running answers of this key are cut off."""
        read_body(NoBody, request)
        changed = services.revoke_key(self.member, key_id, now=timezone.now())
        return Response({**KeyOut(changed.key).data, "change": {"id": changed.change}})


class PlaygroundKeyView(OrgView):
    actions = {"POST": Action.INFER}

    @extend_schema(operation_id="create_playground_key", request=NoBody, responses={201: PlaygroundKeyOut})
    def post(self, request: Request, org: str) -> Response:
        """A key for the dashboard's own playground: inference only, for a quarter of an hour."""
        read_body(NoBody, request)
        issued = services.create_playground_key(self.member, now=timezone.now())
        content = {"secret": issued.secret, "expires_at": issued.key.expires_at, "change": {"id": issued.change}}
        return Response(PlaygroundKeyOut(content).data, status=201)


urlpatterns = [
    path("orgs/<slug:org>/keys", KeysView.as_view()),
    path("orgs/<slug:org>/keys/<uuid:key_id>", KeyView.as_view()),
    path("orgs/<slug:org>/keys/<uuid:key_id>/revoke", RevokeView.as_view()),
    path("orgs/<slug:org>/playground-key", PlaygroundKeyView.as_view()),
]
