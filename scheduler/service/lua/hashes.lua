-- KEYS: hashes. -> all that each of them has.

local found = {}
for i, key in ipairs(KEYS) do found[i] = redis.call('HGETALL', key) end
return found
