-- A sign of life. KEYS: the owners; ARGV: the app.

local now = redis.call('TIME')
redis.call('ZADD', KEYS[1], now[1] * 1000 + math.floor(now[2] / 1000), ARGV[1])
