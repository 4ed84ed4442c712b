"""Who is next where requests wait for the same replicas: deficit round robin over organisations, and over keys within each. Pure.

Every organisation's turn gives it credit by its weight, and a request is let through when the credit covers its cost. However many
requests one organisation or key has waiting, the others' turns come as often.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Any, Generic, Protocol, TypeVar

QUANTUM = 1024  # credit, in tokens, for one turn at weight 1
DEAREST = 16 * QUANTUM  # what a request costs at most, so that a turn comes within as many rounds


class Queued(Protocol):
    """A request that waits. `gone`: it left; it is passed over. `cost` in tokens."""

    org_id: str
    key_id: str
    weight: int
    cost: int
    gone: bool


Q = TypeVar("Q", bound=Queued)


def _cost(request: Queued) -> int:
    return max(1, min(request.cost, DEAREST))


class _Line(Generic[Q]):
    """Requests of one key, first come first served."""

    def __init__(self) -> None:
        self._line: deque[Q] = deque()

    def add(self, request: Q) -> None:
        self._line.append(request)

    def head(self) -> Q | None:
        while self._line and self._line[0].gone:
            self._line.popleft()
        return self._line[0] if self._line else None

    def pop(self) -> Q:
        return self._line.popleft()


P = TypeVar("P", covariant=True)


class _Source(Protocol[P]):
    def head(self) -> P | None: ...
    def pop(self) -> P: ...


S = TypeVar("S", bound=_Source[Any])


class _Turns(Generic[Q, S]):
    """Flows that take turns. The one at the front goes on until its credit is used up."""

    def __init__(self, make: Callable[[], S], weight: Callable[[Q], int]) -> None:
        self._make = make
        self._weight = weight
        self._flows: dict[str, S] = {}
        self._credit: dict[str, int] = {}
        self._order: deque[str] = deque()

    def flow(self, name: str) -> S:
        found = self._flows.get(name)
        if found is None:
            found = self._flows[name] = self._make()
            self._credit[name] = 0
            self._order.append(name)
        return found

    def head(self) -> Q | None:
        while self._order:
            name = self._order[0]
            request: Q | None = self._flows[name].head()
            if request is None:  # who has nothing waiting keeps no credit
                self._order.popleft()
                del self._flows[name], self._credit[name]
            elif self._credit[name] >= _cost(request):
                return request
            else:
                self._order.rotate(-1)
                self._credit[name] += QUANTUM * self._weight(request)
        return None

    def pop(self) -> Q:
        """What `head` has just given."""
        name = self._order[0]
        request: Q = self._flows[name].pop()
        self._credit[name] -= _cost(request)
        return request


class FairQueue(Generic[Q]):
    """Requests that wait for one deployment. `len` counts those that have not left."""

    def __init__(self) -> None:
        self._organisations: _Turns[Q, _Turns[Q, _Line[Q]]] = _Turns(
            lambda: _Turns(_Line, lambda _: 1), lambda request: max(1, request.weight)
        )
        self._size = 0

    def __len__(self) -> int:
        return self._size

    def add(self, request: Q) -> None:
        self._organisations.flow(request.org_id).flow(request.key_id).add(request)
        self._size += 1

    def head(self) -> Q | None:
        """Who is next."""
        return self._organisations.head()

    def pop(self) -> Q:
        """Takes out what `head` has just given."""
        self._size -= 1
        return self._organisations.pop()

    def left(self, request: Q) -> None:
        """A request that waited does not any more, for another reason than its turn."""
        if not request.gone:
            request.gone = True
            self._size -= 1
