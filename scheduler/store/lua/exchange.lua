-- KEYS: the record, the list to send by, the list to take from. ARGV: a field of the record and what it must hold, the
-- fields with the numbers of chunks sent and taken, the number of the first chunk, how many were taken, how many may
-- wait, the chunks. -> the chunks to take, how many wait the other way, and what else the two ends have said, as of the
-- same moment: whoever is told that the command has ended has the last of its output. nil if the record is gone.

if redis.call('HGET', KEYS[1], ARGV[1]) ~= ARGV[2] then return false end
local sent, taken = ARGV[3], ARGV[4]
local number, base = tonumber(redis.call('HGET', KEYS[1], sent) or 0), tonumber(redis.call('HGET', KEYS[1], taken) or 0)
local waiting = redis.call('LLEN', KEYS[2])
for i = 8, #ARGV do
  if tonumber(ARGV[5]) + i - 8 == number and waiting < tonumber(ARGV[7]) then
    waiting = redis.call('RPUSH', KEYS[2], ARGV[i])
    number = number + 1
  end
end
local after = tonumber(ARGV[6])
if after > base then
  redis.call('LTRIM', KEYS[3], after - base, -1)
  base = after
end
redis.call('HSET', KEYS[1], sent, number, taken, base)
local said = redis.call('HMGET', KEYS[1], 'exit', 'error', 'ended', 'rows', 'columns')
return {redis.call('LRANGE', KEYS[3], 0, -1), waiting, said}
