-- Stores the tail of a driver's output, in the first of three forms that fits, for ARGV[4] seconds.
--
-- with live

local output, live = unpack(KEYS)
local company, app, most, kept_s, tail, short, note = unpack(ARGV)
local before = #(redis.call('GET', output) or '')
tail = fitting(live, company, most, before, tail, short, note)
redis.call('SET', output, tail, 'EX', kept_s)
add_live(live, company, app, #tail - before)
