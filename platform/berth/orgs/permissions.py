"""Who may do what: one table, from which routes, services and tests read (docs/security.md, "Authorisation").

An action that no row names cannot be granted; a view that names no action does not answer.
"""

from __future__ import annotations

from enum import StrEnum

from berth.orgs.models import Role


class Action(StrEnum):
    ORG_READ = "org.read"
    ORG_UPDATE = "org.update"
    MEMBERS_READ = "members.read"
    MEMBERS_WRITE = "members.write"
    KEYS_CREATE = "keys.create"
    KEYS_READ_OWN = "keys.read_own"
    KEYS_READ_ALL = "keys.read_all"
    KEYS_CREATE_SERVICE = "keys.create_service"
    MODELS_READ = "models.read"
    MODELS_WRITE = "models.write"
    MODELS_DELETE_ALL = "models.delete_all"
    DEPLOYMENTS_READ = "deployments.read"
    DEPLOYMENTS_WRITE = "deployments.write"
    DEPLOYMENTS_DELETE = "deployments.delete"
    LOGS_READ = "logs.read"
    INFER = "infer"
    USAGE_READ = "usage.read"
    BILLING_READ = "billing.read"
    BUDGETS_READ = "budgets.read"
    BUDGETS_WRITE = "budgets.write"
    BUDGETS_WRITE_ORG = "budgets.write_org"
    PRIVACY_READ = "privacy.read"
    PRIVACY_WRITE = "privacy.write"
    RECORDS_READ = "records.read"
    RECORDS_ERASE = "records.erase"


_ALL = frozenset(Role)
_O, _A, _D, _B = Role.OWNER, Role.ADMIN, Role.DEVELOPER, Role.BILLING
_BUILDERS = frozenset({_O, _A, _D})
_ADMINS = frozenset({_O, _A})

MATRIX: dict[Action, frozenset[Role]] = {
    Action.ORG_READ: _ALL,
    Action.ORG_UPDATE: frozenset({_O}),
    Action.MEMBERS_READ: _ALL,
    Action.MEMBERS_WRITE: _ADMINS,
    Action.KEYS_CREATE: _BUILDERS,
    Action.KEYS_READ_OWN: _BUILDERS,
    Action.KEYS_READ_ALL: _ADMINS,
    Action.KEYS_CREATE_SERVICE: _ADMINS,
    Action.MODELS_READ: _ALL,
    Action.MODELS_WRITE: _BUILDERS,
    Action.MODELS_DELETE_ALL: _ADMINS,  # developers: versions that they added themselves
    Action.DEPLOYMENTS_READ: _ALL,
    Action.DEPLOYMENTS_WRITE: _BUILDERS,
    Action.DEPLOYMENTS_DELETE: _ADMINS,
    Action.LOGS_READ: _BUILDERS,
    Action.INFER: _BUILDERS,
    Action.USAGE_READ: _ALL,
    Action.BILLING_READ: frozenset({_O, _A, _B}),
    # Developers: those of their own keys and deployments; of members and of the organisation only who may do more.
    Action.BUDGETS_READ: frozenset({_O, _A, _D, _B}),
    Action.BUDGETS_WRITE: frozenset({_O, _A, _D, _B}),
    Action.BUDGETS_WRITE_ORG: frozenset({_O, _B}),
    Action.PRIVACY_READ: _ALL,
    Action.PRIVACY_WRITE: _ADMINS,
    Action.RECORDS_READ: _ADMINS,
    Action.RECORDS_ERASE: _ADMINS,
}


def allows(role: str, action: Action) -> bool:
    return role in MATRIX[action]


def actions_of(role: str) -> list[Action]:
    """In the table's order, for `GET /me`."""
    return [action for action in Action if allows(role, action)]


_RANK = {Role.OWNER: 3, Role.ADMIN: 2, Role.DEVELOPER: 1, Role.BILLING: 1, Role.VIEWER: 1}


def may_grant(own: str, role: str) -> bool:
    """Whether `role` is not above `own`. Developer, billing and viewer stand beside each other."""
    return _RANK[Role(role)] <= _RANK[Role(own)]
