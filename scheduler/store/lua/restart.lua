-- Has the tasks that failed before their app was put back run again (semantics X6), a chunk at a time.
--
-- -> the number of tasks left to look at; -1 if the executor is not granted or the app is over.
--
-- with granted, queued

local queue, tasks, grants = KEYS[1], KEYS[2], KEYS[3]
local executor, chunk, id, head, tail, origin, now = unpack(ARGV)
if not granted(grants, executor) or redis.call('HEXISTS', tasks, 'forgotten') == 1 then return -1 end
local run = cjson.decode(redis.call('HGET', grants, executor)).restarts or 0
local about = redis.call('HMGET', tasks, 'restarts', 'restarting', 'filled')
local filled = tonumber(about[3] or 0)
if run > tonumber(about[1] or 0) then
  redis.call('HSET', tasks, 'restarts', run, 'restarting', 0)
  about[2] = 0
end
if not about[2] then return 0 end
local first = tonumber(about[2])
local upto = math.min(first + chunk, filled)
for i = first, upto - 1 do
  local known = redis.call('HGET', tasks, i)
  local task = known and cjson.decode(known)
  if task and task.state == 'failed' then
    task.state = 'queued'
    task.failures = 0
    task.broken = nil
    task.tried = nil
    redis.call('HSET', tasks, i, cjson.encode(task))
    redis.call('HINCRBY', tasks, 'failed', -1)
    redis.call('HSET', 'rq:job:' .. id .. i, 'created_at', now, 'enqueued_at', now,
      'data', head .. string.format('%d', i) .. tail, 'origin', origin, 'description', string.format('task %d', i),
      'status', 'queued', 'timeout', -1, 'result_ttl', 0, 'failure_ttl', 1)
    queue_task(queue, tasks, id, string.format('%d', i), 2)
  end
end
if upto < filled then
  redis.call('HSET', tasks, 'restarting', upto)
else
  redis.call('HDEL', tasks, 'restarting', 'detail')
end
return filled - upto
