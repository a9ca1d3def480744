-- Stores the tail of the output of an executor's program as `keep_driver_output` does, and drops that of another.
--
-- with live

local output, live = unpack(KEYS)
local company, app, most, kept_s, number, gone, tail, short, note = unpack(ARGV)
if gone ~= '' then
  add_live(live, company, app, -#(redis.call('HGET', output, gone) or ''))
  redis.call('HDEL', output, gone)
end
keep_tail(live, company, app, most, output, number, tail, short, note)
redis.call('EXPIRE', output, kept_s)
