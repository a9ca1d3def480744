-- Adds what a program has used to its app's counters, unless it was counted. KEYS: `tasks`; ARGV: a field of its own,
-- CPU time, peak memory, how long (s) the counters of an app without tasks are kept.

local tasks = KEYS[1]
local once, cpu_ms, peak_mb, kept_s = unpack(ARGV)
if redis.call('HSETNX', tasks, once, 1) == 0 then return end
redis.call('HINCRBY', tasks, 'cpu_ms', cpu_ms)
local most = tonumber(redis.call('HGET', tasks, 'peak_mb') or '') or 0
if tonumber(peak_mb) > most then redis.call('HSET', tasks, 'peak_mb', peak_mb) end
if redis.call('HEXISTS', tasks, 'tasks') == 0 then redis.call('EXPIRE', tasks, kept_s) end
