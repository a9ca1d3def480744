-- Puts an app's secrets aside. KEYS: where; ARGV: expiry (s), then names and values in turn. -> 2 if they were stored,
-- 1 if the same ones were there already, 0 if others were.

local there = redis.call('HLEN', KEYS[1])
for i = 2, #ARGV, 2 do
  if there > 0 and redis.call('HGET', KEYS[1], ARGV[i]) ~= ARGV[i+1] then return 0 end
end
if there > 0 then return 2 * there == #ARGV - 1 and 1 or 0 end
redis.call('HSET', KEYS[1], unpack(ARGV, 2))
redis.call('EXPIRE', KEYS[1], ARGV[1])
return 2
