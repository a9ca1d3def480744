-- Heartbeats. KEYS: heartbeats, the grants of each worker; ARGV: the workers. -> for each whether it is registered,
-- and its grants.

if redis.set_repl then redis.set_repl(redis.REPL_NONE) end
local now = redis.call('TIME')
local at, found = now[1] * 1000 + math.floor(now[2] / 1000), {}
for i, worker in ipairs(ARGV) do
  local registered = redis.call('ZSCORE', KEYS[1], worker)
  if registered then redis.call('ZADD', KEYS[1], at, worker) end
  found[i] = {registered and 1 or 0, redis.call('HGETALL', KEYS[i + 1])}
end
return found
