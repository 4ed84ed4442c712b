"""The base of every view inside an organisation: it finds the organisation, the member, and asks the matrix."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar, cast

from rest_framework.request import Request
from rest_framework.views import APIView

from berth.orgs.models import Member, Organisation, User
from berth.orgs.permissions import Action, allows
from berth.orgs.recent import require_recent
from berth.web.auth import SignedIn
from berth.web.errors import Forbidden, NotFound


class OrgView(APIView):
    """A view under /api/v1/orgs/{org}/. Subclasses name an action per method; a method without one is refused.

    After `initial()`, `self.org` and `self.member` are set. Who is no member gets the same 404 as for an organisation that
    does not exist; a member without the permission gets 403.
    """

    permission_classes = (SignedIn,)
    actions: ClassVar[Mapping[str, Action]] = {}
    recent: ClassVar[frozenset[str]] = frozenset()  # methods that need the password lately
    org: Organisation
    member: Member

    def initial(self, request: Request, *args: Any, **kwargs: Any) -> None:
        super().initial(request, *args, **kwargs)
        user = cast(User, request.user)
        member = (
            Member.objects.across_orgs("which organisation is being asked for?")
            .select_related("org")
            .filter(user=user, org__slug=kwargs["org"])
            .first()
        )
        if member is None:
            raise NotFound("organisation")
        if any("\0" in str(part) for part in kwargs.values()):  # PostgreSQL has no such text
            raise NotFound("page")
        self.org, self.member = member.org, member
        method = (request.method or "").upper()
        action = self.actions.get("GET" if method in {"HEAD", "OPTIONS"} else method)
        if action is None:
            self.http_method_not_allowed(request)
            raise NotFound("page")
        if not allows(member.role, action):
            raise Forbidden(action)
        if method in self.recent:
            require_recent(request._request)
