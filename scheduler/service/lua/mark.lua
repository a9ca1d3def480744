-- KEYS: the mark; ARGV: the new one. Returns the present one.

local left = redis.call('GET', KEYS[1])
if redis.set_repl then redis.set_repl(redis.REPL_NONE) end
redis.call('SET', KEYS[1], ARGV[1])
return left
