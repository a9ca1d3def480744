-- As `send`, unless the app has a task that nobody runs or stays for (`Progress.left`) or the executor holds one.
-- KEYS: also the app's `tasks`, `begun` and `later`. ARGV: also the executor, the last. -> as `send`; 2 if nothing
-- was sent for that reason.
--
-- with sending

local executor = ARGV[#ARGV]
local counts = redis.call('HMGET', KEYS[3], 'tasks', 'succeeded', 'failed', 'cancelled')
if not counts[1] then return 2 end
local over = tonumber(counts[2] or 0) + tonumber(counts[3] or 0) + tonumber(counts[4] or 0)
local running, later = redis.call('HLEN', KEYS[4]), redis.call('ZCARD', KEYS[5])
if tonumber(counts[1]) > over + running + later or (later > 0 and running == 0) then return 2 end
for _, holder in ipairs(redis.call('HVALS', KEYS[4])) do if holder == executor then return 2 end end
return send({unpack(ARGV, 1, #ARGV - 1)})
