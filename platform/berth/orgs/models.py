"""People and what they belong to."""

from __future__ import annotations

from typing import Any

from django.contrib.auth.base_user import AbstractBaseUser, BaseUserManager
from django.db import models
from django.db.models.functions import Lower

from berth.orgs.limits import Limited
from berth.orgs.tenancy import OrgOwned, new_id


class UserManager(BaseUserManager["User"]):
    def create_user(self, email: str, password: str | None = None, **fields: Any) -> User:
        user = self.model(email=self.normalize_email(email).lower(), **fields)
        user.set_password(password)
        user.save(using=self._db)
        return user


class User(AbstractBaseUser):
    """A person. What they may do comes from memberships; `is_operator` opens the platform's own pages, no tenant's content."""

    id = models.UUIDField(primary_key=True, default=new_id, editable=False)
    email = models.EmailField()
    name = models.CharField(max_length=120, blank=True)
    language = models.CharField(max_length=8, default="en", choices=[("en", "English"), ("zh-hans", "简体中文")])
    is_active = models.BooleanField(default=True)
    is_operator = models.BooleanField(default=False)
    # Berth made the password and wrote it down (the first start); the dashboard reminds until the user has changed it.
    password_is_temporary = models.BooleanField(default=False, db_default=False)
    created_at = models.DateTimeField(auto_now_add=True)

    objects = UserManager()
    USERNAME_FIELD = "email"
    EMAIL_FIELD = "email"

    class Meta:
        constraints = [models.UniqueConstraint(Lower("email"), name="user_email_unique")]

    def __str__(self) -> str:
        return str(self.pk)


class Organisation(Limited):
    id = models.UUIDField(primary_key=True, default=new_id, editable=False)
    slug = models.SlugField(max_length=40, unique=True)
    name = models.CharField(max_length=120)
    time_zone = models.CharField(max_length=64, default="UTC")  # for reports; statements close by it
    suspended_at = models.DateTimeField(null=True, blank=True)
    suspended_reason = models.CharField(max_length=200, blank=True)
    created_at = models.DateTimeField(auto_now_add=True)

    class Meta:
        constraints = [
            models.CheckConstraint(
                condition=models.Q(slug__regex=r"^[a-z0-9][a-z0-9-]{0,38}[a-z0-9]$"), name="organisation_slug_form"
            ),
        ]

    def __str__(self) -> str:
        return self.slug


class Role(models.TextChoices):
    OWNER = "owner"
    ADMIN = "admin"
    DEVELOPER = "developer"
    BILLING = "billing"
    VIEWER = "viewer"


class Member(Limited, OrgOwned):
    user = models.ForeignKey(User, on_delete=models.PROTECT, related_name="memberships")
    role = models.CharField(max_length=16, choices=Role)

    class Meta:
        constraints = [models.UniqueConstraint(fields=["org", "user"], name="member_once")]

    def __str__(self) -> str:
        return f"{self.role} {self.pk}"


class Invitation(OrgOwned):
    """Bound to an address, an organisation and a role; used once, within seven days. Only the token's digest is kept."""

    email = models.EmailField()
    role = models.CharField(max_length=16, choices=Role)
    token_digest = models.BinaryField(max_length=32, unique=True)
    invited_by = models.ForeignKey(User, on_delete=models.PROTECT, related_name="+")
    expires_at = models.DateTimeField()
    accepted_at = models.DateTimeField(null=True, blank=True)
    revoked_at = models.DateTimeField(null=True, blank=True)

    def __str__(self) -> str:
        return str(self.pk)


class IdempotentAnswer(models.Model):
    """What a creating POST answered, sealed, so that the same request sent again creates nothing (berth.orgs.idempotency)."""

    id = models.BigAutoField(primary_key=True)
    digest = models.BinaryField(max_length=32, unique=True)  # of user, method, address and the client's key
    user = models.ForeignKey(User, on_delete=models.CASCADE, related_name="+")
    body_digest = models.BinaryField(max_length=32, null=True)
    answer = models.BinaryField(null=True)  # null: not answered yet
    created_at = models.DateTimeField(auto_now_add=True)

    class Meta:
        indexes = [models.Index(fields=["user", "created_at"], name="idempotent_by_user_age")]

    def __str__(self) -> str:
        return str(self.pk)
