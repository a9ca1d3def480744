-- KEYS: masters; ARGV: the member, and for how long (ms) one is remembered.
--
-- with sound

sound(KEYS[1], 'zset')
local now = redis.call('TIME')
local ms = now[1] * 1000 + math.floor(now[2] / 1000)
redis.call('ZADD', KEYS[1], ms, ARGV[1])
redis.call('ZREMRANGEBYSCORE', KEYS[1], '-inf', ms - ARGV[2])
