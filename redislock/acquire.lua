-- Takes the lock for one request, once: asked again with the same ID, it gives the
-- same answer. All reads come before all writes, and what holds the lock is written
-- first, so that a refusal of the server (out of memory, read-only) leaves nothing.
--
-- KEYS: lock, counter of tokens, tombstone of the ID, turn, queue.
-- ARGV: ID, TTL in ms, owner, entry in the queue ("" for who does not wait), longest TTL
-- in seconds (0: not given).
--
-- Returns the token, as a string since Lua's numbers are cut; or a number, -1: the ID
-- was abandoned, -2 … -5: lock, counter, turn or queue are not ours; or a pair, the
-- second in milliseconds: 0, held for so long, 1, another's turn for so long, 2, none
-- is granted for so long, as the server was started too short a time ago.

local v, last, void, turn = unpack(redis.call('MGET', KEYS[1], KEYS[2], KEYS[3], KEYS[4]))

local why, left -- it cannot be had now
if v then
  local id, token = string.match(v, '^(%x+) (%d+) %d+ ')
  if not id or #id ~= 32 then return -2 end
  if id == ARGV[1] then
    redis.call('PEXPIRE', KEYS[1], ARGV[2])
    return token
  end
  why, left = 0, redis.call('PTTL', KEYS[1])
elseif turn and turn ~= ARGV[1] then
  why, left = 1, redis.call('PTTL', KEYS[4])
  if left < 0 or #turn ~= 32 then return -4 end -- our turns are over by themselves
end
if void then return -1 end

if why then
  if ARGV[4] == '' then return {why, left} end
  -- A queue is ours if what is in it is.
  local head = redis.pcall('ZRANGE', KEYS[5], '0', '0')
  if head.err and not string.find(head.err, 'WRONGTYPE', 1, true) then return head end
  if head.err or head[1] and not string.match(head[1], '^%x+ %x+ %d+$') then return -5 end
  -- In the queue a request keeps its place, however often it asks; who was called (see
  -- release.lua) and came too late has it back. A queue that nobody has asked about for a
  -- minute is of the dead: who waits asks every second.
  local time = redis.call('TIME')
  local added = redis.pcall('ZADD', KEYS[5], 'NX', time[1] .. string.sub('00000' .. time[2], -6), ARGV[4])
  -- Where there is no memory for a queue, the lock is held all the same.
  if type(added) == 'table' and not string.find(added.err, 'OOM', 1, true) then return added end
  if added == 0 then
    local called = string.match(redis.call('ZSCORE', KEYS[5], ARGV[4]), '^%-(.*)')
    if called then redis.call('ZADD', KEYS[5], called, ARGV[4]) end
  end
  redis.call('PEXPIRE', KEYS[5], '60000')
  return {why, left}
end

if last then
  -- Lua counts exactly up to 2^53. In microseconds that is the year 2255.
  if not string.match(last, '^%d+$') or tonumber(last) >= 2^53 then return -3 end
elseif redis.call('EXISTS', KEYS[2]) == 1 then
  return -3 -- MGET has nothing of other types
end
if ARGV[5] ~= '0' then
  -- Leases that the server has forgotten in a restart may still be relied on. It counts
  -- in seconds, of which the first may have been short.
  local up = string.match(redis.call('INFO', 'server'), 'uptime_in_seconds:(%d+)')
  local short = ARGV[5] + 1 - up
  if short > 0 then return {2, short * 1000} end
end

-- With the clock as floor, tokens go on rising when the counter is gone: lost by a
-- restart or a failover, deleted, or expired a day after its last use.
local time = redis.call('TIME')
local now = time[1] .. string.sub('00000' .. time[2], -6) -- in microseconds
local token = now
if last and tonumber(last) >= tonumber(now) then token = string.format('%.0f', last + 1) end

local set = redis.call('SET', KEYS[1], ARGV[1] .. ' ' .. token .. ' ' .. now .. ' ' .. ARGV[3], 'PX', ARGV[2], 'NX')
if not set then return -2 end
local counted = redis.pcall('SET', KEYS[2], token, 'EX', '86400')
if counted.err then
  redis.call('DEL', KEYS[1])
  return counted
end
if turn then redis.pcall('DEL', KEYS[4]) end
if ARGV[4] ~= '' then redis.pcall('ZREM', KEYS[5], ARGV[4]) end
return token
