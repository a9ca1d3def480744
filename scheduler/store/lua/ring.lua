-- KEYS: RQ queue keys, deleted if they are no lists. ARGV: the job id to push on each.

for i = 1, #KEYS do
  local length = redis.pcall('LLEN', KEYS[i])
  if type(length) ~= 'number' then redis.call('DEL', KEYS[i]); length = 0 end
  if length == 0 then redis.call('RPUSH', KEYS[i], ARGV[i]) end
end
