-- KEYS: lease, its term, handovers, the office, masters; ARGV: the member, its term and the longest term (ms). ->
-- nothing if the lease was taken, otherwise its remaining time (ms) and the id of the last handover.
--
-- A lease that never expires, or has more time left than its term, gets one term: something else than a master wrote
-- it, or the store failed over to a server whose clock is behind. A living holder renews it before that is over. The
-- office tells when the holder before took it last.
--
-- with sound

sound(KEYS[1], 'string'); sound(KEYS[2], 'string'); sound(KEYS[3], 'stream'); sound(KEYS[4], 'string')
sound(KEYS[5], 'zset')
local holder = redis.call('GET', KEYS[1])
if holder and holder ~= ARGV[1] then
  local term, left = tonumber(redis.call('GET', KEYS[2]) or ''), redis.call('PTTL', KEYS[1])
  if not term or term < 1 or term > tonumber(ARGV[3]) then term = tonumber(ARGV[2]) end
  if left < 0 or left > term then
    redis.call('PEXPIRE', KEYS[1], math.floor(term))
    left = term
  end
  local last = redis.call('XREVRANGE', KEYS[3], '+', '-', 'COUNT', 1)[1]
  return {left, last and last[1] or '0-0'}
end
redis.call('SET', KEYS[1], ARGV[1], 'PX', ARGV[2])
redis.call('SET', KEYS[2], ARGV[2])
local before, last, of = string.match(redis.call('GET', KEYS[4]) or '', '^(%d+) (%d+) (.*)$')
if of ~= ARGV[1] then before = last or '0' end
local time = redis.call('TIME')
local now = string.format('%.0f', time[1] * 1000 + math.floor(time[2] / 1000))
redis.call('SET', KEYS[4], before .. ' ' .. now .. ' ' .. ARGV[1])
redis.call('ZADD', KEYS[5], now, ARGV[1])
