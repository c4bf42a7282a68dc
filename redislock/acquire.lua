-- Takes the lock for one request, once: asked again with the same ID, it gives the
-- same answer. All reads come before all writes, and the lock is written last, so that
-- a refusal of the server (out of memory, read-only) means that nothing was taken.
--
-- KEYS: lock, counter of tokens, tombstone of the ID. ARGV: ID, TTL in ms, owner.
-- Returns the token, as a string since Lua's numbers are cut, or a number,
-- 0: held by another, -1: the ID was abandoned, -2, -3: lock or counter are not ours.

local v = redis.pcall('GET', KEYS[1])
if type(v) == 'table' then
  if string.find(v.err, 'WRONGTYPE', 1, true) then return -2 end
  return v
end
if v then
  local id, token = string.match(v, '^(%x+) (%d+) %d+ ')
  if not id or #id ~= 32 then return -2 end
  if id ~= ARGV[1] then return 0 end
  redis.call('PEXPIRE', KEYS[1], ARGV[2])
  return token
end

local last = redis.pcall('GET', KEYS[2])
if type(last) == 'table' then
  if string.find(last.err, 'WRONGTYPE', 1, true) then return -3 end
  return last
end
if last then
  -- Lua counts exactly up to 2^53. In microseconds that is the year 2255.
  if not string.match(last, '^%d+$') or tonumber(last) >= 2^53 then return -3 end
end
if redis.call('EXISTS', KEYS[3]) == 1 then return -1 end

-- With the clock as floor, tokens go on rising when the counter is gone: lost by a
-- restart or a failover, deleted, or expired a day after its last use.
local time = redis.call('TIME')
local now = time[1] * 1000000 + time[2]
local token = string.format('%.0f', math.max((last or 0) + 1, now))
redis.call('SET', KEYS[2], token, 'EX', 86400)
local value = ARGV[1] .. ' ' .. token .. ' ' .. string.format('%.0f', now) .. ' ' .. ARGV[3]
redis.call('SET', KEYS[1], value, 'PX', ARGV[2])
return token
