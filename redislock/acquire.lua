-- Takes the lock for one request, once: asked again with the same ID, it gives the
-- same answer. All reads come before all writes; and if what holds the lock cannot be
-- written, or what follows it, nothing is left of it. So whatever error this gives, the
-- request has had no effect.
--
-- KEYS: lock, counter of tokens, tombstone of the ID, turn, queue, when each in it asked.
-- ARGV: ID, TTL in ms, longest TTL in seconds (0: not given), owner; and of who waits, its
-- entry in the queue ("" for who does not), its place there ("" if it has none), the
-- head start that it needs, in three digits of ms, what the channels of all Lockers begin with.
--
-- Returns the token, as a string since Lua's numbers are cut; or a number, -1: the ID
-- was abandoned, -2 … -6: lock, counter, turn, queue or times are not ours; or why it
-- cannot be had (0: it is held, 1: it is another's turn, 2: the server was started too
-- short a time ago), for how many ms (negative: no end is known), its place, and whether
-- it has missed its turn (1).

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

local time = redis.call('TIME')
local now = time[1] .. string.sub('00000' .. time[2], -6) -- in microseconds

if why then
  local entry, place = ARGV[5], ARGV[6]
  if entry == '' then return {why, left, '', 0} end
  -- A queue is ours if what is in it is; the times always have an expiry.
  local head = redis.pcall('ZRANGE', KEYS[5], '0', '0')
  if head.err and not string.find(head.err, 'WRONGTYPE', 1, true) then return head end
  if head.err or head[1] and not string.match(head[1], '^%x+ %x+$') then return -5 end
  if redis.call('PTTL', KEYS[6]) == -1 then return -6 end

  -- Who has not asked for five seconds is dead, as a waiter asks every second; and if
  -- nobody asks for a minute all are.
  local silent = redis.pcall('ZRANGEBYSCORE', KEYS[6], '-inf', string.format('%.0f', now - 5000000), 'LIMIT', '0', '1000')
  for _, dead in ipairs(silent) do
    redis.pcall('ZREM', KEYS[5], dead)
    redis.pcall('ZREM', KEYS[6], dead)
  end

  -- Who was called (see release.lua), and came too late, has its place back: it brings it
  -- along. When it asked is kept to the millisecond; the last three digits are its head
  -- start.
  local missed = 0
  if place == '' then place = now end
  for _, write in ipairs({
    {'ZADD', KEYS[6], string.sub(now, 1, -4) .. ARGV[7], entry}, {'PEXPIRE', KEYS[6], '60000'},
    {'ZADD', KEYS[5], place, entry}, {'PEXPIRE', KEYS[5], '60000'},
  }) do
    local written = redis.pcall(unpack(write))
    if type(written) == 'table' then
      -- Where there is no memory for a queue, the lock is held all the same.
      if string.find(written.err, 'OOM', 1, true) then break end
      redis.pcall('ZREM', KEYS[5], entry)
      redis.pcall('ZREM', KEYS[6], entry)
      if string.find(written.err, 'WRONGTYPE', 1, true) then return -6 end
      return written
    end
    if write[2] == KEYS[5] and write[1] == 'ZADD' and ARGV[6] ~= '' then missed = written end
  end
  -- Behind another's turn it is for the first in the queue to see whether that is taken.
  if why == 1 and head[1] and head[1] ~= entry then left = -1 end
  return {why, left, place, missed}
end

if last then
  -- Lua counts exactly up to 2^53. In microseconds that is the year 2255.
  if not string.match(last, '^%d+$') or tonumber(last) >= 2^53 then return -3 end
elseif redis.call('EXISTS', KEYS[2]) == 1 then
  return -3 -- MGET has nothing of other types
end
if ARGV[3] ~= '0' then
  -- Leases that the server has forgotten in a restart may still be relied on. It counts
  -- in seconds, of which the first may have been short, and by its clock: if that was put
  -- back since, it has run for less than nothing.
  local up = string.match(redis.call('INFO', 'server'), 'uptime_in_seconds:(%-?%d+)')
  local short = ARGV[3] + 1 - math.max(up, 0)
  if short > 0 then return {2, short * 1000, '', 0} end
end

-- With the clock as floor, tokens go on rising when the counter is gone: lost by a
-- restart or a failover, deleted, or expired a day after its last use.
local token = now
if last and tonumber(last) >= tonumber(now) then token = string.format('%.0f', last + 1) end

local set = redis.call('SET', KEYS[1], ARGV[1] .. ' ' .. token .. ' ' .. now .. ' ' .. ARGV[4], 'PX', ARGV[2], 'NX')
if not set then return -2 end
local counted = redis.pcall('SET', KEYS[2], token, 'EX', '86400')
if counted.err then
  redis.call('DEL', KEYS[1])
  return counted
end
if ARGV[5] ~= '' then
  redis.pcall('ZREM', KEYS[5], ARGV[5])
  redis.pcall('ZREM', KEYS[6], ARGV[5])
end
if turn then
  -- It was told to see whether this turn is taken. It is.
  redis.pcall('DEL', KEYS[4])
  local locker, id = string.match(redis.pcall('ZRANGE', KEYS[5], '0', '0')[1] or '', '^(%x+) (%x+)$')
  if locker then redis.pcall('PUBLISH', ARGV[8] .. locker, id .. ' ' .. ARGV[2]) end
end
return token
