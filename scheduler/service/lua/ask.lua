-- Sends one message, unless it is in the inbox already, and rings. KEYS: a lane of the inbox, the master's RQ queue,
-- the key that remembers the entry. ARGV: the bell's job id, how long to remember (ms), the most messages of the lane,
-- the message's fields and values in turn. -> as `send`.
--
-- A message whose answer was lost has left the inbox, and is sent again. Another body under the same id is another
-- message, with an answer of its own.

local entry = redis.call('GET', KEYS[3])
if not entry or #redis.call('XRANGE', KEYS[1], entry, entry) == 0 then
  if redis.call('XLEN', KEYS[1]) >= tonumber(ARGV[3]) then return 1 end
  entry = redis.call('XADD', KEYS[1], '*', unpack(ARGV, 4))
  redis.call('SET', KEYS[3], entry, 'PX', ARGV[2])
end
if redis.call('LLEN', KEYS[2]) == 0 then redis.call('RPUSH', KEYS[2], ARGV[1]) end
return 0
