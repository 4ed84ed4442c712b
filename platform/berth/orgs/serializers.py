"""What the routes of this room read and answer."""

from __future__ import annotations

from typing import Any

from drf_spectacular.utils import extend_schema_field
from rest_framework import serializers

from berth.orgs.limits import LimitsIn, LimitsOut
from berth.orgs.models import Invitation, Member, Organisation, Role, User
from berth.orgs.permissions import Action, actions_of
from berth.web.serializers import StrictSerializer


class UserOut(serializers.ModelSerializer[User]):
    class Meta:
        model = User
        fields = ["id", "email", "name"]


class OrgOut(serializers.ModelSerializer[Organisation]):
    suspended = serializers.SerializerMethodField()

    class Meta:
        model = Organisation
        fields = ["id", "slug", "name", "time_zone", "suspended", "suspended_reason", "created_at"]

    def get_suspended(self, org: Organisation) -> bool:
        return org.suspended_at is not None


class MembershipOut(serializers.ModelSerializer[Member]):
    org = OrgOut()
    permissions = serializers.SerializerMethodField()

    class Meta:
        model = Member
        fields = ["org", "role", "permissions"]

    @extend_schema_field(serializers.ListField(child=serializers.ChoiceField(choices=[a.value for a in Action])))
    def get_permissions(self, member: Member) -> list[str]:
        return [action.value for action in actions_of(member.role)]


class MeOut(serializers.Serializer[Any]):
    id = serializers.UUIDField()
    email = serializers.EmailField()
    name = serializers.CharField()
    language = serializers.ChoiceField(choices=User._meta.get_field("language").choices or [])
    is_operator = serializers.BooleanField()
    password_is_temporary = serializers.BooleanField(help_text="Berth made the password; changing it clears this")
    memberships = MembershipOut(many=True)
    api_base = serializers.URLField(help_text="Base URL of the OpenAI-compatible API")
    currency = serializers.CharField(help_text="ISO 4217")
    version = serializers.CharField(help_text="Of Berth")


class MemberOut(serializers.ModelSerializer[Member]):
    user = UserOut()
    limits = LimitsOut(help_text="Of all keys of this member together")

    class Meta:
        model = Member
        fields = ["id", "user", "role", "created_at", "limits"]


class InvitationOut(serializers.ModelSerializer[Invitation]):
    invited_by = UserOut()

    class Meta:
        model = Invitation
        fields = ["id", "email", "role", "invited_by", "created_at", "expires_at"]


class IssuedInvitationOut(InvitationOut):
    """Answered once: the token is not kept."""

    token = serializers.CharField()
    url = serializers.URLField()

    class Meta(InvitationOut.Meta):
        fields = [*InvitationOut.Meta.fields, "token", "url"]


class ProfileIn(StrictSerializer):
    name = serializers.CharField(max_length=120, allow_blank=True, required=False)
    language = serializers.ChoiceField(choices=User._meta.get_field("language").choices or [], required=False)


class NewOrgIn(StrictSerializer):
    slug = serializers.CharField(max_length=40)
    name = serializers.CharField(max_length=120)


class OrgIn(StrictSerializer):
    name = serializers.CharField(max_length=120, required=False)
    time_zone = serializers.CharField(max_length=64, required=False)


class SuspensionIn(StrictSerializer):
    reason = serializers.CharField(max_length=200, help_text="Shown to the organisation's members")


class MemberIn(StrictSerializer):
    """What is absent stays."""

    role = serializers.ChoiceField(choices=Role.choices, required=False)
    limits = LimitsIn(required=False)


class InvitationIn(StrictSerializer):
    email = serializers.EmailField(max_length=254)
    role = serializers.ChoiceField(choices=Role.choices)


class AcceptIn(StrictSerializer):
    token = serializers.CharField(max_length=200)
    password = serializers.CharField(max_length=200, required=False, default="", trim_whitespace=False)
    name = serializers.CharField(max_length=120, required=False, default="", allow_blank=True)


class AcceptedOut(serializers.Serializer[Any]):
    org = OrgOut()
    role = serializers.ChoiceField(choices=Role.choices)
    signed_in = serializers.BooleanField()
