-- Stores the output tails of tasks that are running on the executor, each in the first of three forms that fits.
--
-- with live

local begun, output, live = unpack(KEYS)
local executor, company, app, most = unpack(ARGV)
for n = 5, #ARGV, 4 do
  if redis.call('HGET', begun, ARGV[n]) == executor then
    keep_tail(live, company, app, most, output, ARGV[n], ARGV[n + 1], ARGV[n + 2], ARGV[n + 3])
  end
end
