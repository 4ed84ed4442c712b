"""What passes between a request, its limits and the link to Valkey. Data only."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from msgspec import Struct

from berth_gateway.contract import Budget, KeyInfo, OrgInfo, Route
from berth_gateway.errors import Refusal
from berth_gateway.pools import Pool
from berth_gateway.purse import Purse


class Demand(Struct, frozen=True):
    """A request as limits see it. `tokens` it may use by estimate, at least `least` of them, `cost` it may have at most, `at` in Unix
    seconds. `open_ended`: it names no bound of its own, so that a token limit is one."""

    key: KeyInfo
    org: OrgInfo
    route: Route
    tokens: int
    cost: int
    at: float
    open_ended: bool = False
    least: int = 0

    def tokens_of(self, limit: int) -> int:
        return max(self.least, min(self.tokens, limit)) if self.open_ended else self.tokens


class Permit:
    """What an admitted request holds, until its last byte. `budgets`: those that its purses belong to."""

    __slots__ = ("budgets", "demand", "ended", "lines", "purses", "takes")

    def __init__(self, demand: Demand, budgets: list[Budget]) -> None:
        self.demand = demand
        self.budgets = budgets
        self.takes: list[tuple[Pool, int, int]] = []  # pool, slot, units
        self.purses: list[Purse] = []
        self.lines = b""
        self.ended = False


@dataclass(slots=True, eq=False)
class Waiting:
    """A request that waits for Valkey. `done` is called once, unless it is cancelled."""

    demand: Demand
    done: Callable[[Permit | Refusal], None]
    asked: bool = False  # its units are in a message that is under way
    rounds: int = 0  # messages that did not settle it, because others took what came
    cancelled: bool = False


@dataclass(slots=True)
class Asks:
    """What to send to Valkey in one go: pools and purses, with the units and costs of requests that wait for them."""

    pools: dict[Pool, list[int]] = field(default_factory=dict)
    purses: dict[Purse, list[int]] = field(default_factory=dict)

    def __bool__(self) -> bool:
        return bool(self.pools or self.purses)
