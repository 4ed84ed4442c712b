"""Routes about oneself, organisations, their members and invitations."""

from __future__ import annotations

from typing import Any, cast
from uuid import UUID

from django.conf import settings
from django.contrib import auth
from django.urls import path
from django.utils import timezone
from drf_spectacular.utils import OpenApiResponse, extend_schema
from rest_framework.request import Request
from rest_framework.response import Response
from rest_framework.views import APIView

from berth.orgs import membership, services
from berth.orgs.events import org_events
from berth.orgs.idempotency import idempotent
from berth.orgs.models import User
from berth.orgs.permissions import Action
from berth.orgs.serializers import (
    AcceptedOut,
    AcceptIn,
    InvitationIn,
    InvitationOut,
    IssuedInvitationOut,
    MemberIn,
    MemberOut,
    MeOut,
    NewOrgIn,
    OrgIn,
    OrgOut,
    ProfileIn,
    SuspensionIn,
)
from berth.orgs.views import OrgView
from berth.web.auth import Open, Operator, SignedIn, require_csrf_token
from berth.web.errors import Forbidden
from berth.web.pagination import page, page_of
from berth.web.serializers import NoBody, PageQuery, read_body
from berth.web.throttle import AddressThrottle
from berth.web.version import version

GONE = OpenApiResponse(description="Done.")


class MeView(APIView):
    permission_classes = (SignedIn,)

    @extend_schema(operation_id="me", responses=MeOut)
    def get(self, request: Request) -> Response:
        """Who is signed in, where they belong, and what they may do there."""
        return Response(_me(cast(User, request.user)))

    @extend_schema(operation_id="update_me", request=ProfileIn, responses=MeOut)
    def patch(self, request: Request) -> Response:
        user = services.update_profile(cast(User, request.user), **read_body(ProfileIn, request, partial=True))
        return Response(_me(user))


def _me(user: User) -> Any:
    memberships = services.memberships_of(user)
    about = {"api_base": settings.API_BASE, "currency": settings.CURRENCY, "version": version()}
    own_fields = ("id", "email", "name", "language", "is_operator", "password_is_temporary")
    own = {name: getattr(user, name) for name in own_fields}
    return MeOut({**own, **about, "memberships": memberships}).data


class OrgsView(APIView):
    permission_classes = (SignedIn,)

    @extend_schema(operation_id="list_orgs", responses=page_of(OrgOut), parameters=[PageQuery])
    def get(self, request: Request) -> Response:
        """One's own organisations; for an operator, all."""
        return page(request, services.visible_organisations(cast(User, request.user)), OrgOut)

    @extend_schema(operation_id="create_org", request=NewOrgIn, responses={201: OrgOut})
    @idempotent
    def post(self, request: Request) -> Response:
        """Makes an organisation that the calling operator owns."""
        user = cast(User, request.user)
        if not user.is_operator:
            raise Forbidden("operator")
        org = services.create_organisation(owner=user, **read_body(NewOrgIn, request))
        return Response(OrgOut(org).data, status=201)


class OrgDetailView(OrgView):
    actions = {"GET": Action.ORG_READ, "PATCH": Action.ORG_UPDATE}

    @extend_schema(operation_id="get_org", responses=OrgOut)
    def get(self, request: Request, org: str) -> Response:
        return Response(OrgOut(self.org).data)

    @extend_schema(operation_id="update_org", request=OrgIn, responses=OrgOut)
    def patch(self, request: Request, org: str) -> Response:
        changed = services.update_organisation(self.org, **read_body(OrgIn, request, partial=True))
        return Response(OrgOut(changed).data)


class MembersView(OrgView):
    actions = {"GET": Action.MEMBERS_READ}

    @extend_schema(operation_id="list_members", responses=page_of(MemberOut), parameters=[PageQuery])
    def get(self, request: Request, org: str) -> Response:
        return page(request, membership.members(self.org), MemberOut)


class MemberView(OrgView):
    actions = {"PATCH": Action.MEMBERS_WRITE, "DELETE": Action.MEMBERS_WRITE}

    @extend_schema(operation_id="change_member", request=MemberIn, responses=MemberOut)
    def patch(self, request: Request, org: str, member_id: UUID) -> Response:
        """The role, and how fast all keys of the member together may be used (service keys not)."""
        member = membership.change_member(self.member, member_id, **read_body(MemberIn, request))
        return Response(MemberOut(member).data)

    @extend_schema(operation_id="remove_member", request=None, responses={204: GONE})
    def delete(self, request: Request, org: str, member_id: UUID) -> Response:
        """Also revokes the member's personal keys and the invitations they sent. Service keys stay."""
        membership.remove_member(self.member, member_id, now=timezone.now())
        return Response(status=204)


class InvitationsView(OrgView):
    actions = {"GET": Action.MEMBERS_WRITE, "POST": Action.MEMBERS_WRITE}

    @extend_schema(operation_id="list_invitations", responses=page_of(InvitationOut), parameters=[PageQuery])
    def get(self, request: Request, org: str) -> Response:
        return page(request, membership.open_invitations(self.org), InvitationOut)

    @extend_schema(operation_id="invite", request=InvitationIn, responses={201: IssuedInvitationOut})
    @idempotent
    def post(self, request: Request, org: str) -> Response:
        """The answer holds the token and its link, once. They are for the invited person alone."""
        issued = membership.invite(self.member, now=timezone.now(), **read_body(InvitationIn, request))
        link = {"token": issued.token, "url": f"{settings.PUBLIC_URL}/invite/{issued.token}"}
        return Response({**InvitationOut(issued.invitation).data, **link}, status=201)


class InvitationView(OrgView):
    actions = {"DELETE": Action.MEMBERS_WRITE}

    @extend_schema(operation_id="revoke_invitation", request=None, responses={204: GONE})
    def delete(self, request: Request, org: str, invitation_id: UUID) -> Response:
        membership.revoke_invitation(self.member, invitation_id, now=timezone.now())
        return Response(status=204)


class AcceptView(APIView):
    permission_classes = (Open,)
    throttle_classes = (AddressThrottle,)

    @extend_schema(operation_id="accept_invitation", request=AcceptIn, responses={201: AcceptedOut})
    def post(self, request: Request) -> Response:
        """Joins the organisation. A new address gives a password and is signed in; one with an account signs in first."""
        require_csrf_token(request)
        sent = read_body(AcceptIn, request)
        user = request.user if request.user.is_authenticated else None
        accepted = membership.accept_invitation(
            sent["token"], user=user, password=sent["password"], name=sent["name"], now=timezone.now()
        )
        if accepted.new_user:
            auth.login(request._request, accepted.member.user, backend=settings.AUTHENTICATION_BACKENDS[0])
        content = AcceptedOut({"org": accepted.member.org, "role": accepted.member.role, "signed_in": True}).data
        return Response(content, status=201)


class SuspendView(APIView):
    permission_classes = (Operator,)

    @extend_schema(operation_id="suspend_org", request=SuspensionIn, responses=OrgOut)
    def post(self, request: Request, org: str) -> Response:
        """Its API keys stop working; its members still read everything."""
        suspended = services.suspend_organisation(org, now=timezone.now(), **read_body(SuspensionIn, request))
        return Response(OrgOut(suspended).data)


class ResumeView(APIView):
    permission_classes = (Operator,)

    @extend_schema(operation_id="resume_org", request=NoBody, responses=OrgOut)
    def post(self, request: Request, org: str) -> Response:
        read_body(NoBody, request)
        return Response(OrgOut(services.resume_organisation(org)).data)


urlpatterns = [
    path("me", MeView.as_view()),
    path("orgs", OrgsView.as_view()),
    path("invitations/accept", AcceptView.as_view()),
    path("operator/orgs/<slug:org>/suspend", SuspendView.as_view()),
    path("operator/orgs/<slug:org>/resume", ResumeView.as_view()),
    path("orgs/<slug:org>", OrgDetailView.as_view()),
    path("orgs/<slug:org>/members", MembersView.as_view()),
    path("orgs/<slug:org>/members/<uuid:member_id>", MemberView.as_view()),
    path("orgs/<slug:org>/invitations", InvitationsView.as_view()),
    path("orgs/<slug:org>/invitations/<uuid:invitation_id>", InvitationView.as_view()),
    path("orgs/<slug:org>/events", org_events),
]
