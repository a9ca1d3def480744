-- Creates up to a chunk of jobs. -> the number left to create; -1 if the executor is not granted or the app is over.
--
-- Of an app whose tasks prefer hosts, ARGV[9] says which and how long tasks wait, ARGV[10] where the executor is, and
-- ARGV[11] the first task of the chunk; the hosts of each of its tasks follow. A chunk that another executor has
-- created is not created again.
--
-- with granted, queued

local queue, tasks, grants, queues = KEYS[1], KEYS[2], KEYS[3], KEYS[4]
local executor, total, chunk = ARGV[1], tonumber(ARGV[2]), tonumber(ARGV[3])
local id, head, tail, origin, now = ARGV[4], ARGV[5], ARGV[6], ARGV[7], ARGV[8]
local near, place, start = ARGV[9], ARGV[10], tonumber(ARGV[11])
if not granted(grants, executor) or redis.call('HEXISTS', tasks, 'forgotten') == 1 then return -1 end
local filled = tonumber(redis.call('HGET', tasks, 'filled') or 0)
if start and start ~= filled then chunk = 0 end
local upto = math.min(filled + chunk, total)
if near then
  local clock = redis.call('TIME')
  redis.call('HSETNX', tasks, 'near', near)
  redis.call('HSETNX', tasks, 'near:since', string.format('%d', clock[1] * 1000 + math.floor(clock[2] / 1000)))
  redis.call('HSET', tasks, 'place:' .. executor, place)
end
if filled < total then
  if filled == 0 then
    redis.call('HSET', tasks, 'tasks', total)
    if cjson.decode(redis.call('HGET', grants, executor)).keep_going then redis.call('HSET', tasks, 'keep_going', 1) end
    redis.call('SADD', queues, queue)
  end
  for i = filled, upto - 1 do
    redis.call('HSET', 'rq:job:' .. id .. i, 'created_at', now, 'enqueued_at', now, 'data', head .. i .. tail,
      'origin', origin, 'description', 'task ' .. i, 'status', 'queued', 'timeout', -1,
      'result_ttl', 0, 'failure_ttl', 1)
    local hosts = near and ARGV[12 + i - filled]
    if hosts and hosts ~= '' then redis.call('HSET', tasks, 'hosts:' .. i, hosts) end
    if hosts then queue_task(queue, tasks, id, i, 1) else redis.call('RPUSH', queue, id .. i) end
  end
  redis.call('HSET', tasks, 'filled', upto)
end
return total - upto
