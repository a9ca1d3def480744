-- KEYS: lease, masters, handovers, the office; ARGV: the member, and 0 if it has not served.
--
-- A holder that has not served leaves the office as if it had never held it.
--
-- with sound

sound(KEYS[1], 'string'); sound(KEYS[2], 'zset'); sound(KEYS[3], 'stream'); sound(KEYS[4], 'string')
local before, _, of = string.match(redis.call('GET', KEYS[4]) or '', '^(%d+) (%d+) (.*)$')
if ARGV[2] == '0' and of == ARGV[1] then redis.call('SET', KEYS[4], '0 ' .. before .. ' nobody') end
if redis.call('GET', KEYS[1]) == ARGV[1] then
  redis.call('DEL', KEYS[1])
  redis.call('XADD', KEYS[3], 'MAXLEN', 1, '*', 'by', ARGV[1])
end
redis.call('ZREM', KEYS[2], ARGV[1])
