"""How rooms above this one take part in what happens here, inside the same transaction.

A room registers in its `AppConfig.ready`; this room never learns who listens.
"""

from __future__ import annotations

from collections.abc import Callable

from berth.orgs.models import Member, User

MemberRemoved = Callable[[Member, User], None]

_member_removed: list[MemberRemoved] = []


def when_member_removed(callback: MemberRemoved) -> None:
    """`callback(member, by)` runs before the membership is deleted; what it raises undoes the removal."""
    if callback not in _member_removed:
        _member_removed.append(callback)


def tell_member_removed(member: Member, by: User) -> None:
    for callback in _member_removed:
        callback(member, by)
