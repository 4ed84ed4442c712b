"""How the slots of one replica are shared among gateway processes: runs inside Valkey, where nothing comes in between.

Who wants less than the even part gets what it wants, the others get what is left, evenly; which of them get one more changes every
second, so that everybody has a turn where there are more processes than slots. What nobody wants is dealt out evenly, too. Running
requests are not taken back, so what is set aside changes as they end. All that is set aside together never exceeds the slots.
"""

# KEYS: the replica's hash. ARGV: worker, name for the channel, channel, slots, keep, want, even part.
# Fields: 'settled' (when all gateways had time to tell what they hold, ms) and of each worker w:<name> = 'held want told seen'.
# Answers {held, target}.
SLOTS = """
local DEAD_MS, SETTLING_MS = 10000, 3000
local h, me, name, channel = KEYS[1], 'w:' .. ARGV[1], ARGV[2], ARGV[3]
local slots, keep, want, even = tonumber(ARGV[4]), tonumber(ARGV[5]), tonumber(ARGV[6]), tonumber(ARGV[7])
local time = redis.call('TIME')
local now = time[1] * 1000 + math.floor(time[2] / 1000)

local all = redis.call('HGETALL', h)
local workers, settled, others = {{id = me, held = 0, want = want, told = -1}}, nil, 0
local mine = workers[1]
for i = 1, #all, 2 do
  if all[i] == 'settled' then
    settled = tonumber(all[i + 1])
  elseif all[i] ~= me then
    local held, wanted, told, seen = string.match(all[i + 1], '(%d+) (%d+) (%d+) (%d+)')
    if now - seen > DEAD_MS then
      redis.call('HDEL', h, all[i])
    else
      local each = {id = all[i], held = tonumber(held), want = tonumber(wanted), told = tonumber(told)}
      workers[#workers + 1] = each
      others = others + each.held
    end
  end
end
if not settled then
  local up = tonumber(string.match(redis.call('INFO', 'server'), 'uptime_in_seconds:(%d+)'))
  settled = now + (up < 5 and SETTLING_MS or 0)
  redis.call('HSET', h, 'settled', settled)
end

table.sort(workers, function(a, b) return a.id < b.id end)
local n, left, open = #workers, slots, 0
for i = 1, n do
  workers[i].target = 0
  if workers[i].want > 0 then open = open + 1 end
end
while open > 0 and left >= open do
  local part = math.floor(left / open)
  open = 0
  for i = 1, n do
    local w = workers[i]
    local more = math.min(part, math.max(0, w.want - w.target))
    w.target, left = w.target + more, left - more
    if w.target < w.want then open = open + 1 end
  end
end
local turn = math.floor(now / 1000)
for i = 0, n - 1 do
  local w = workers[(i + turn) % n + 1]
  if left > 0 and w.target < w.want then w.target, left = w.target + 1, left - 1 end
end
for i = 1, n do
  local more = math.ceil(left / (n - i + 1))
  workers[i].target, left = workers[i].target + more, left - more
end

local target = mine.target
if now < settled then target = math.min(target, even) end
local held = math.max(keep, math.min(target, slots - others))
local free = slots - others - held

local function lacks(has, wants, should)
  return has < math.min(wants, should) or (has == 0 and should > 0)
end

local short, poke = lacks(held, want, target), false
for i = 1, n do
  local w = workers[i]
  if w ~= mine then
    if short and w.held > w.target and w.told ~= w.target then poke = true end
    if free > 0 and lacks(w.held, w.want, w.target) then poke = true end
  end
end
redis.call('HSET', h, me, held .. ' ' .. want .. ' ' .. target .. ' ' .. now)
redis.call('PEXPIRE', h, 130000)
if poke then redis.call('PUBLISH', channel, name .. ' ' .. ARGV[1]) end
return {held, target}
"""
