"""What budgets' claims look like in Valkey, as the control plane writes and reads them (docs/limits.md)."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, NamedTuple, cast

from berth.outbox.valkey import client
from berth_gateway.contract import BUDGET_PREFIX, GATEWAYS_KEY

LEASE_MS = 20_000  # the gateways' LEASE_SECONDS: what a worker holds is good for no longer without contact

# What the control plane does every few seconds. KEYS: the budget's hash. ARGV: limit, version of the budget, lease ms if the hash has
# been lost and 0 if it is new, expiry (Unix seconds, 0: never), then of each worker: name, ledger amount, position, claim to begin
# with, 1 if gone.
# A worker without a claim gets one, because it has spent so much; that of one that is gone becomes what the ledger says.
# Answers {1 if it had to be written anew, left, then worker and claim of each}.
_SEED = """
local h, limit, said, delay, expiry = KEYS[1], ARGV[1], ARGV[2], tonumber(ARGV[3]), tonumber(ARGV[4])
local function take(amount)
  if amount ~= '0' then redis.call('HINCRBY', h, 'left', '-' .. amount) end
end
local function put(amount) redis.call('HINCRBY', h, 'left', amount) end
local known = redis.call('HMGET', h, 'limit', 'said')
local fresh = 0
if not known[1] then
  fresh = 1
  local run = string.match(redis.call('INFO', 'server'), 'run_id:(%x+)')
  local time = redis.call('TIME')
  local now = time[1] * 1000 + math.floor(time[2] / 1000)
  redis.call('HSET', h, 'limit', limit, 'said', said, 'left', limit, 'run', run, 'open_at', now + delay, 'n', 0)
  if expiry > 0 then redis.call('EXPIREAT', h, expiry) end
elseif said > known[2] then
  if limit ~= known[1] then
    take(known[1])
    put(limit)
  end
  redis.call('HSET', h, 'limit', limit, 'said', said)
end
for i = 5, #ARGV, 5 do
  local w = ARGV[i]
  redis.call('HSET', h, 'l:' .. w, ARGV[i + 1] .. ' ' .. ARGV[i + 2])
  local claim = redis.call('HGET', h, 'c:' .. w)
  local wanted = ARGV[i + 3]
  if ARGV[i + 4] == '1' then wanted = ARGV[i + 1] end
  if not claim or (ARGV[i + 4] == '1' and claim ~= wanted) then
    put(claim or '0')
    take(wanted)
    redis.call('HSET', h, 'c:' .. w, wanted)
  end
end
local answer = {fresh, redis.call('HGET', h, 'left')}
local fields = redis.call('HGETALL', h)
for i = 1, #fields, 2 do
  if string.sub(fields[i], 1, 2) == 'c:' then
    answer[#answer + 1] = string.sub(fields[i], 3)
    answer[#answer + 1] = fields[i + 1]
  end
end
return answer
"""


class Told(NamedTuple):
    """Of one gateway: what the ledger books to it, up to which spool position, and the least it may have claimed."""

    gateway: str
    spent_pico: int
    position: int
    claim_pico: int
    gone: bool = False


class Claims(NamedTuple):
    """`written`: the hash was not there. `left_pico`: what nobody has claimed; below 0 when more was spent than is allowed."""

    written: bool
    left_pico: int
    by_gateway: dict[str, int]


def seed(name: str, *, limit_pico: int, version: int, lost: bool, expires_at: int, told: Iterable[Told]) -> Claims:
    """Writes what the ledger knows of a budget's period (`<budget id>:<period>`) and returns what is claimed. `lost`: it has been
    there before, so if it is not now, workers are given time to say what they hold before anything is granted."""
    arguments: list[str] = [str(limit_pico), f"{version:020}", str(LEASE_MS if lost else 0), str(expires_at)]
    for each in told:
        arguments += [each.gateway, str(each.spent_pico), str(each.position), str(each.claim_pico), str(int(each.gone))]
    answer = cast("list[Any]", client().eval(_SEED, 1, BUDGET_PREFIX + name, *arguments))
    pairs = iter(answer[2:])
    return Claims(
        bool(answer[0]), int(answer[1]), {key.decode(): int(value) for key, value in zip(pairs, pairs, strict=True)}
    )


def read(names: list[str]) -> dict[str, dict[str, int]]:
    """What is claimed now, by name and gateway, without writing anything."""
    found: dict[str, dict[str, int]] = {}
    for name in names:
        fields = cast("dict[bytes, bytes]", client().hgetall(BUDGET_PREFIX + name))
        found[name] = {key[2:].decode(): int(value) for key, value in fields.items() if key.startswith(b"c:")}
    return found


def gateways() -> set[str]:
    """Names of gateways that have reported lately."""
    return {name.decode() for name in cast("list[bytes]", client().hkeys(GATEWAYS_KEY))}


def forget(name: str) -> None:
    client().delete(BUDGET_PREFIX + name)
