-- Frees the lock if it is this holder's, and calls who waits for it. To abandon a
-- request, it takes that out of the queue, too; and it leaves a tombstone, if a request of
-- the same ID may still be on its way: that will take nothing.
--
-- KEYS: lock, queue, when each in it asked, turn, and to abandon, the tombstone of the ID.
-- ARGV: ID, what the channels of all Lockers begin with, whether the server knows all
-- who listen (1); and to abandon, the entry in the queue, the tombstone's life in ms (0:
-- none).
-- Returns 1: freed, or 0: not this holder's.

local v = redis.pcall('GET', KEYS[1])
if type(v) == 'table' and not string.find(v.err, 'WRONGTYPE', 1, true) then return v end

local freed, call = 0, false
if type(v) == 'string' and string.sub(v, 1, #ARGV[1] + 1) == ARGV[1] .. ' ' then
  freed = redis.call('DEL', KEYS[1])
  call = true
end
if KEYS[5] then
  redis.pcall('ZREM', KEYS[2], ARGV[4]) -- first: who has written may go on when memory is out
  redis.pcall('ZREM', KEYS[3], ARGV[4])
  if ARGV[5] ~= '0' then redis.call('SET', KEYS[5], '1', 'PX', ARGV[5]) end
  if redis.pcall('GET', KEYS[4]) == ARGV[1] then -- the turn that it will not take
    redis.call('DEL', KEYS[4])
    call = not v
  end
end
if not call then return freed end

-- From here on nothing may fail: the lock is free. If what there is in place of a queue
-- or a turn is not ours, it is left alone.
--
-- Who has waited longest is called, and gets the turn: for as long as its head start (see
-- acquire.lua), nobody else may take the lock. If it comes too late, it has its place
-- back. Whom nobody hears for is dead. The one behind is told to look after twice the
-- head start.
local start -- that was given
for _ = 1, 1000 do -- of the dead, no more in one release
  local entry = redis.pcall('ZRANGE', KEYS[2], '0', '0')[1]
  local locker, id = string.match(entry or '', '^(%x+) (%x+)$')
  if not locker then break end
  local asked = redis.pcall('ZSCORE', KEYS[3], entry)
  local heard = false
  if type(asked) == 'string' then
    local message = start and id .. ' ' .. 2 * start or id
    heard = redis.pcall('PUBLISH', ARGV[2] .. locker, message) ~= 0 or ARGV[3] ~= '1'
  end
  if heard and start then break end
  redis.pcall('ZREM', KEYS[2], entry)
  redis.pcall('ZREM', KEYS[3], entry)
  if heard then
    start = math.max(string.sub(asked, -3), 1)
    redis.pcall('SET', KEYS[4], id, 'PX', start, 'NX')
  end
end
return freed
