-- Frees the lock if it is this holder's, and wakes who waits for it. To abandon a
-- request, it takes that out of the queue, too, and leaves a tombstone: a request of
-- the same ID that is still on its way will take nothing.
--
-- KEYS: lock, queue, turn, and perhaps the tombstone of the ID.
-- ARGV: ID, what the channels of all Lockers begin with, whether the server knows all
-- who listen (1); and with a tombstone its life in ms, and the entry in the queue.
-- Returns 1: freed, or 0: not this holder's.

local v = redis.pcall('GET', KEYS[1])
if type(v) == 'table' and not string.find(v.err, 'WRONGTYPE', 1, true) then return v end

local freed, wake = 0, false
if type(v) == 'string' and string.sub(v, 1, #ARGV[1] + 1) == ARGV[1] .. ' ' then
  freed = redis.call('DEL', KEYS[1])
  wake = true
end
if KEYS[4] then
  redis.pcall('ZREM', KEYS[2], ARGV[5]) -- first: who has written may go on when memory is out
  redis.call('SET', KEYS[4], '1', 'PX', ARGV[4])
  if redis.pcall('GET', KEYS[3]) == ARGV[1] then -- the turn that it will not take
    redis.call('DEL', KEYS[3])
    wake = not v
  end
end

-- Who has waited longest is called, and gets the turn: for as long as its head start,
-- which is in its entry, nobody else may take the lock. A negative score says that it
-- was called: if it has not even asked since, or nobody hears for it, it is dead. The
-- one behind is told to look after twice the head start. If what there is in place of a
-- queue or a turn is not ours, it is left alone: it must not fail the release.
if not wake then return freed end
local start -- that was given
local place = '0'
for _ = 1, 1000 do -- of the dead, no more in one release
  local entry, score = unpack(redis.pcall('ZRANGE', KEYS[2], place, place, 'WITHSCORES'))
  local locker, id, own = string.match(entry or '', '^(%x+) (%x+) (%d+)$')
  if not locker then break end
  local alive = false
  if start or tonumber(score) > 0 then
    local message = start and id .. ' ' .. 2 * start or id
    alive = redis.pcall('PUBLISH', ARGV[2] .. locker, message) ~= 0 or ARGV[3] ~= '1'
  end
  if not alive then
    redis.call('ZREM', KEYS[2], entry)
  elseif start then
    break
  else
    redis.call('ZADD', KEYS[2], '-' .. score, entry)
    redis.pcall('SET', KEYS[3], id, 'PX', own, 'NX')
    start, place = own, '1'
  end
end
return freed
