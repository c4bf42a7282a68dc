-- Returns what there is of the lock; a number: 0, it is free, or -2, it is not ours.
-- A GET of the client's could be answered by a replica, or from a cache of its own.
--
-- KEYS: lock.

local v = redis.pcall('GET', KEYS[1])
if type(v) == 'table' and string.find(v.err, 'WRONGTYPE', 1, true) then return -2 end
return v or 0
