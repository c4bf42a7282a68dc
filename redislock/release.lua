-- Frees the lock if it is this holder's. With a tombstone, a request of the same ID
-- that is still on its way will take nothing.
--
-- KEYS: lock, and perhaps the tombstone of the ID. ARGV: ID, tombstone's life in ms.
-- Returns 1: freed, or 0: not this holder's.

local v = redis.pcall('GET', KEYS[1])
if type(v) == 'table' and not string.find(v.err, 'WRONGTYPE', 1, true) then return v end

local freed = 0
if type(v) == 'string' and string.sub(v, 1, #ARGV[1] + 1) == ARGV[1] .. ' ' then
  freed = redis.call('DEL', KEYS[1])
end
if KEYS[2] then redis.call('SET', KEYS[2], '1', 'PX', ARGV[2]) end
return freed
