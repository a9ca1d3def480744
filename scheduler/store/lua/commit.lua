-- KEYS: log, heartbeats, agents, then the key of each change. ARGV: expected last id, expected last digest, digest of
-- an empty log, id of the turn's entry (or empty) and its fields, then per change: operation, number of arguments,
-- arguments.
--
-- with return_tasks

local log, heartbeats, agents = KEYS[1], KEYS[2], KEYS[3]
local last = redis.call('XREVRANGE', log, '+', '-', 'COUNT', 1)[1]
local id, digest = '0-0', ARGV[3]
if last then id = last[1]; digest = last[2][#last[2]] end
if id ~= ARGV[1] or digest ~= ARGV[2] then return {0, id, digest} end
local at = ARGV[4] == '' and 5 or 11
local key = 4
while ARGV[at] == 'trim' do
  if #redis.call('XRANGE', KEYS[key], ARGV[at+3], ARGV[at+3]) == 0 then return {0, id, digest, KEYS[key]} end
  key, at = key + 1, at + 4
end
if ARGV[4] ~= '' then
  redis.call('XADD', log, ARGV[4], 'first', ARGV[5], 'at', ARGV[6], 'events', ARGV[7], 'commands', ARGV[8],
    'private', ARGV[9], 'digest', ARGV[10])
end
at, key = ARGV[4] == '' and 5 or 11, 4
while at <= #ARGV do
  local what, first = ARGV[at], at + 2
  at = first + tonumber(ARGV[at+1])
  if what == 'grant' then redis.call('HSET', KEYS[key], unpack(ARGV, first, at - 1))
  elseif what == 'revoke' then redis.call('HDEL', KEYS[key], unpack(ARGV, first, at - 1))
  elseif what == 'claim' then
    if redis.call('EXISTS', ARGV[first]) == 1 then
      redis.call('RENAME', ARGV[first], KEYS[key]); redis.call('PERSIST', KEYS[key])
    end
  elseif what == 'trim' then redis.call('XTRIM', KEYS[key], 'MINID', ARGV[first])
  elseif what == 'back' then
    return_tasks(KEYS[key], ARGV[first], ARGV[first+1], ARGV[first+2], ARGV[first+3], first + 4, at - 1)
  elseif what == 'leave' then
    redis.call('DEL', KEYS[key]); redis.call('ZREM', heartbeats, ARGV[first]); redis.call('HDEL', agents, ARGV[first])
  elseif what == 'join' then
    local now = redis.call('TIME')
    redis.call('ZADD', heartbeats, now[1] * 1000 + math.floor(now[2] / 1000), ARGV[first])
  end
  key = key + 1
end
return {1}
