"""What runs inside Valkey, where nothing comes in between: one script for shares of limits, one for claims on budgets.

Amounts of money are 64-bit integers and Lua's numbers are not: they are only ever added by HINCRBY, and a sum is only looked at for
its sign, which is exact.
"""

# KEYS: hash of slots, hash of workers. ARGV: worker, kind, limit, keep, need, want, then pairs of (slot, units used).
# Answers {granted, free, milliseconds until what was missing comes back, workers, this clock}. A clock that was set back must not keep
# anything for longer than a minute: what was used counts as used now.
SHARE = """
local WINDOW, AHEAD, DEAD_MS, FORGET_MS = 601, 10, 10000, 60000
local slots, workers = KEYS[1], KEYS[2]
local worker, seats = ARGV[1], ARGV[2] == 'seats'
local limit, keep, need, want = tonumber(ARGV[3]), tonumber(ARGV[4]), tonumber(ARGV[5]), tonumber(ARGV[6])
local time = redis.call('TIME')
local now = time[1] * 1000 + math.floor(time[2] / 1000)
local slot = math.floor(now / 100)
local known = redis.call('HMGET', slots, 'sum', 'old', 'seen')
local sum, old = tonumber(known[1] or '0'), tonumber(known[2] or slot)
if known[3] and tonumber(known[3]) > slot + AHEAD then
  redis.call('DEL', slots)
  redis.call('HSET', slots, slot, sum)
  old = slot
end

local function used(at, units)
  if at > slot + AHEAD then at = slot end
  if at + WINDOW > slot then
    redis.call('HINCRBY', slots, at, units)
    sum = sum + units
    if at < old then old = at end
  end
end

for i = 7, #ARGV, 2 do used(tonumber(ARGV[i]), tonumber(ARGV[i + 1])) end

local held, active = 0, 1
local all = redis.call('HGETALL', workers)
for i = 1, #all, 2 do
  if all[i] ~= worker then
    local units, seen = string.match(all[i + 1], '(%d+) (%d+)')
    units, seen = tonumber(units), tonumber(seen)
    if seen > now + 100 * AHEAD then
      seen = now
      redis.call('HSET', workers, all[i], units .. ' ' .. seen)
    end
    if units > 0 and now - seen > DEAD_MS then
      if not seats then used(math.floor(seen / 100), units) end
      redis.call('HSET', workers, all[i], '0 ' .. seen)
      units = 0
    end
    if now - seen > FORGET_MS then redis.call('HDEL', workers, all[i]) else active = active + 1 end
    held = held + units
  end
end

while old + WINDOW <= slot do
  local gone = redis.call('HGET', slots, old)
  if gone then
    sum = sum - gone
    redis.call('HDEL', slots, old)
  end
  old = old + 1
end

local free = limit - sum - held - keep
local grant = 0
if free > 0 then
  grant = math.min(need, free)
  grant = grant + math.min(want - need, math.floor((free - grant) / (2 * active)))
end
local back, missing = 0, need - grant
if missing > 0 then
  back = 1000
  missing = missing - math.max(0, free - grant)
  local at = old
  while at <= slot + AHEAD do
    local units = redis.call('HGET', slots, at)
    if units then missing = missing - units end
    if missing <= 0 then
      back = (at + WINDOW) * 100 - now
      break
    end
    at = at + 1
  end
end
redis.call('HSET', slots, 'sum', sum, 'old', old, 'seen', slot)
redis.call('HSET', workers, worker, (keep + grant) .. ' ' .. now)
redis.call('PEXPIRE', slots, 130000)
redis.call('PEXPIRE', workers, 130000)
return {grant, free - grant, back, active, now}
"""

# KEYS: the budget's hash. ARGV: worker, sequence, limit, version of the budget (padded, sorts), keep, all, ahead, more,
# settling ms, lease ms, then needs. Fields: limit, said, left, run (of the server, another one after each restart), open_at, n (workers);
# of each worker c: (claim), q: (sequence), r: (run in which it was heard), l: (ledger: amount and position, by the control plane).
# Answers {'absent'} · {'stale', sequence} · {'wait', ms, claim} · {'ok', claim, left, 1 if roomy}.
CLAIM = """
local h, w, sequence, limit, said = KEYS[1], ARGV[1], ARGV[2], ARGV[3], ARGV[4]
local keep, all, ahead, more = ARGV[5], ARGV[6], ARGV[7], ARGV[8]
local settling, lease = tonumber(ARGV[9]), tonumber(ARGV[10])
local run = string.match(redis.call('INFO', 'server'), 'run_id:(%x+)')
local f = redis.call('HMGET', h, 'limit', 'said', 'run', 'open_at', 'q:' .. w, 'c:' .. w)
if not f[1] then return {'absent'} end
if f[5] and tonumber(f[5]) >= tonumber(sequence) then return {'stale', f[5]} end
if not f[5] then redis.call('HINCRBY', h, 'n', 1) end

local function take(amount)
  if amount == '0' then return 0 end
  return redis.call('HINCRBY', h, 'left', '-' .. amount)
end
local function put(amount) redis.call('HINCRBY', h, 'left', amount) end

if said > f[2] then
  if limit ~= f[1] then
    take(f[1])
    put(limit)
  end
  redis.call('HSET', h, 'limit', limit, 'said', said)
end
local time = redis.call('TIME')
local now = time[1] * 1000 + math.floor(time[2] / 1000)
local open_at = tonumber(f[4])
if f[3] ~= run or open_at > now + lease then
  open_at = now + lease
  redis.call('HSET', h, 'run', run, 'open_at', open_at)
end
put(f[6] or '0')
redis.call('HSET', h, 'q:' .. w, sequence, 'r:' .. w, run)

local open = now >= open_at
if not open and now >= open_at - lease + settling then
  open = true
  local fields, confirmed, claims = redis.call('HGETALL', h), {}, {}
  for i = 1, #fields, 2 do
    local kind, name = string.sub(fields[i], 1, 2), string.sub(fields[i], 3)
    if kind == 'r:' and fields[i + 1] == run then confirmed[name] = true end
    if kind == 'c:' and fields[i + 1] ~= '0' then claims[name] = true end
  end
  for name in pairs(claims) do
    if not confirmed[name] then open = false end
  end
end
if not open then
  take(all)
  redis.call('HSET', h, 'c:' .. w, all)
  return {'wait', math.min(open_at - now, 1000), all}
end
take(keep)
redis.call('HSET', h, 'c:' .. w, keep)
for i = 11, #ARGV do
  if take(ARGV[i]) < 0 then put(ARGV[i]) else redis.call('HINCRBY', h, 'c:' .. w, ARGV[i]) end
end
local f2 = redis.call('HMGET', h, 'left', 'n')
local roomy = 0
if tonumber(f2[1]) > 8 * tonumber(f2[2]) * tonumber(ahead) then
  roomy = 1
  if more ~= '0' then
    take(more)
    redis.call('HINCRBY', h, 'c:' .. w, more)
  end
end
local last = redis.call('HMGET', h, 'c:' .. w, 'left')
return {'ok', last[1], last[2], roomy}
"""
