"""An attribute that is computed when it is first asked for, without the lock that `functools.cached_property` takes each time.

Plans ask for tens of thousands of them.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Generic, TypeVar

T = TypeVar("T")


class once(Generic[T]):  # noqa: N801 - used like `property`
    """Two threads may both compute it, and get equal values."""

    def __init__(self, build: Callable[[Any], T]) -> None:
        self.build, self.name = build, build.__name__
        self.__doc__ = build.__doc__

    def __get__(self, instance: Any, owner: Any = None) -> T:
        value = self.build(instance)
        instance.__dict__[self.name] = value
        return value
