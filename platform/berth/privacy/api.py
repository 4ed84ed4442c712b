"""Routes of the privacy policy and of inference records."""

from __future__ import annotations

from typing import Any
from uuid import UUID

from django.urls import path
from django.utils import timezone
from drf_spectacular.utils import extend_schema
from rest_framework import serializers
from rest_framework.request import Request
from rest_framework.response import Response

from berth.orgs.permissions import Action
from berth.orgs.serializers import UserOut
from berth.orgs.views import OrgView
from berth.privacy import services
from berth.privacy.models import MOST_DAYS, InferenceRecord, PrivacyEvent
from berth.web.pagination import page, page_of
from berth.web.serializers import NoBody, PageQuery, StrictSerializer, read_body


def _ids(**how: Any) -> serializers.ListField:
    return serializers.ListField(child=serializers.UUIDField(), max_length=1000, **how)


class PolicyOut(serializers.Serializer[Any]):
    recording = serializers.BooleanField(
        help_text="Whether requests and answers are kept, sealed to the organisation's key"
    )
    retention_days = serializers.IntegerField()
    padded = serializers.BooleanField(
        help_text="Whether answers are filled up to fixed sizes, so that packets say less of them"
    )
    keys_apart = serializers.BooleanField(
        help_text="Whether no API key finds what another has left in an engine's cache of prompt prefixes"
    )
    excluded_deployment_ids = _ids(help_text="Deployments of whose requests nothing is kept")
    excluded_key_ids = _ids(help_text="API keys of whose requests nothing is kept")
    changed_at = serializers.DateTimeField(allow_null=True, help_text="null: never changed")


class PolicyChangeRefOut(serializers.Serializer[Any]):
    id = serializers.IntegerField(help_text="For GET /orgs/{org}/gateways?change=: on how many gateways it has arrived")


class ChangedPolicyOut(PolicyOut):
    change = PolicyChangeRefOut()


class PolicyIn(StrictSerializer):
    """What is absent stays."""

    recording = serializers.BooleanField(required=False)
    retention_days = serializers.IntegerField(required=False, min_value=1, max_value=MOST_DAYS)
    padded = serializers.BooleanField(required=False)
    keys_apart = serializers.BooleanField(required=False)
    excluded_deployment_ids = _ids(required=False)
    excluded_key_ids = _ids(required=False)


class RecordOut(serializers.ModelSerializer[InferenceRecord]):
    class Meta:
        model = InferenceRecord
        fields = ["id", "deployment_id", "api_key_id", "accepted_at", "expires_at"]


class RecordContentOut(RecordOut):
    endpoint = serializers.CharField()
    request = serializers.CharField(help_text="The body as the client sent it; what is no UTF-8 is replaced")
    response = serializers.CharField(help_text="The body as the client got it, an event stream included")
    request_cut = serializers.BooleanField(help_text="Longer than what is kept")
    response_cut = serializers.BooleanField()

    class Meta(RecordOut.Meta):
        fields = [*RecordOut.Meta.fields, "endpoint", "request", "response", "request_cut", "response_cut"]


class ErasedOut(serializers.Serializer[Any]):
    erased = serializers.IntegerField()


class PrivacyEventOut(serializers.ModelSerializer[PrivacyEvent]):
    user = UserOut()

    class Meta:
        model = PrivacyEvent
        fields = ["id", "kind", "user", "at", "record_id", "details"]


class PolicyView(OrgView):
    actions = {"GET": Action.PRIVACY_READ, "PATCH": Action.PRIVACY_WRITE}

    @extend_schema(operation_id="get_privacy_policy", responses=PolicyOut)
    def get(self, request: Request, org: str) -> Response:
        """What is kept of requests. Without a change ever: nothing."""
        return Response(PolicyOut(services.policy_of(self.org)).data)

    @extend_schema(operation_id="change_privacy_policy", request=PolicyIn, responses=ChangedPolicyOut)
    def patch(self, request: Request, org: str) -> Response:
        """Holds on every gateway within a second, for requests that begin after it."""
        policy = services.set_policy(self.member, now=timezone.now(), **read_body(PolicyIn, request))
        return Response({**PolicyOut(policy).data, "change": {"id": policy.change}})


class RecordsView(OrgView):
    actions = {"GET": Action.RECORDS_READ}

    @extend_schema(operation_id="list_records", responses=page_of(RecordOut), parameters=[PageQuery])
    def get(self, request: Request, org: str) -> Response:
        """Which requests are kept, without their content."""
        return page(request, services.visible_records(self.org, timezone.now()), RecordOut)


class OpenRecordView(OrgView):
    actions = {"POST": Action.RECORDS_READ}
    recent = frozenset({"POST"})

    @extend_schema(operation_id="open_record", request=NoBody, responses=RecordContentOut)
    def post(self, request: Request, org: str, record_id: UUID) -> Response:
        """What was asked and answered. That you read it is noted for good, and the organisation can see it. Who gave the password more than
        a quarter of an hour ago gets 403 `sign_in.not_recent` and confirms it first: POST /api/v1/auth/browser/v1/auth/reauthenticate."""
        read_body(NoBody, request)
        record, content = services.open_record(self.member, record_id, now=timezone.now())
        texts = {
            "request": content.request.decode(errors="replace"),
            "response": content.response.decode(errors="replace"),
        }
        more = {"endpoint": content.endpoint, "request_cut": content.request_cut, "response_cut": content.response_cut}
        return Response({**RecordOut(record).data, **texts, **more}, headers={"Cache-Control": "no-store"})


class EraseView(OrgView):
    actions = {"POST": Action.RECORDS_ERASE}

    @extend_schema(operation_id="erase_records", request=NoBody, responses=ErasedOut)
    def post(self, request: Request, org: str) -> Response:
        """All records, for good: the key that could open copies in a backup is destroyed with them."""
        read_body(NoBody, request)
        return Response({"erased": services.erase_records(self.member, now=timezone.now())})


class PrivacyEventsView(OrgView):
    actions = {"GET": Action.PRIVACY_READ}

    @extend_schema(operation_id="list_privacy_events", responses=page_of(PrivacyEventOut), parameters=[PageQuery])
    def get(self, request: Request, org: str) -> Response:
        """Who changed the policy, read a record or erased them, newest first."""
        return page(request, services.visible_events(self.org), PrivacyEventOut)


urlpatterns = [
    path("orgs/<slug:org>/privacy", PolicyView.as_view()),
    path("orgs/<slug:org>/privacy/events", PrivacyEventsView.as_view()),
    path("orgs/<slug:org>/records", RecordsView.as_view()),
    path("orgs/<slug:org>/records/<uuid:record_id>/open", OpenRecordView.as_view()),
    path("orgs/<slug:org>/records/erase", EraseView.as_view()),
]
