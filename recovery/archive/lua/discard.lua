-- KEYS: the name of the current draft, draft, its further parts.

redis.call('UNLINK', unpack(KEYS, 2))
if redis.call('GET', KEYS[1]) == KEYS[2] then redis.call('DEL', KEYS[1]) end
