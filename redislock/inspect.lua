-- Returns what there is of the lock, or 0, if it is free, and how many wait for it; or
-- the number -2: it is not ours. A GET of the client's could be answered by a replica,
-- or from a cache of its own.
--
-- KEYS: lock, when each in the queue asked.

local v = redis.pcall('GET', KEYS[1])
if type(v) == 'table' then
  if string.find(v.err, 'WRONGTYPE', 1, true) then return -2 end
  return v
end
local now = redis.call('TIME')[1]
local waiting = redis.pcall('ZCOUNT', KEYS[2], (now - 5) .. '000000', '+inf')
if type(waiting) == 'table' then waiting = 0 end
return {v or 0, waiting}
