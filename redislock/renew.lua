-- Extends each lock that is still its holder's, and creates none.
--
-- KEYS: locks. ARGV: of each lock, the ID of its holder and the TTL in ms.
-- Returns one character for each lock, 1: extended, or 0: not that holder's.

local answers = {}
for i, key in ipairs(KEYS) do
  local id = ARGV[2 * i - 1]
  local v = redis.pcall('GET', key)
  if type(v) == 'table' and not string.find(v.err, 'WRONGTYPE', 1, true) then return v end
  if type(v) == 'string' and string.sub(v, 1, #id + 1) == id .. ' ' then
    redis.call('PEXPIRE', key, ARGV[2 * i])
    answers[i] = '1'
  else
    answers[i] = '0'
  end
end
return table.concat(answers)
