-- Lua function: return the running tasks of the executors ARGV[first..last] to the front of the queue. What is known
-- of the attempt that is broken off stays as `last`: it may have been the task's last one.
--
-- A name that begins with `!` is of an executor that ended abnormally. A task whose executors do so again and again
-- waits before it is handed out (semantics W10).
--
-- Masters run it in their commits, so it takes whatever it finds: keys of another type are deleted, and a task whose
-- state cannot be read begins anew.
--
-- with queued

local AT_ONCE = 2  -- so many executors in a row may end abnormally before their task waits to be handed out

local function return_tasks(queue, tasks, begun, later, id, first, last)
local jobs = 'rq:job:' .. id
local gone, broken = {}, {}
local clock = redis.call('TIME')
local at = clock[1] * 1000 + math.floor(clock[2] / 1000)
local kinds = {[queue] = 'list', [tasks] = 'hash', [begun] = 'hash', [later] = 'zset', [near_of(tasks)] = 'zset'}
for key, kind in pairs(kinds) do
  local found = redis.call('TYPE', key).ok
  if found ~= kind and found ~= 'none' then redis.call('DEL', key) end
end
for n = first, last do
  local name = string.gsub(ARGV[n], '^!', '')
  gone[name] = true
  broken[name] = name ~= ARGV[n]
end
local all, found = redis.call('HGETALL', begun), {}
for n = 1, #all, 2 do
  if gone[all[n + 1]] then
    local i = tonumber(all[n])
    found[#found + 1] = i
    if i then broken[i] = broken[all[n + 1]] end
  end
end
table.sort(found, function(a, b) return a > b end)
for _, number in ipairs(found) do
  local i = string.format('%d', number)
  local readable, task = pcall(cjson.decode, redis.call('HGET', tasks, i))
  if not readable or type(task) ~= 'table' then task = {attempts = 0, failures = 0} end
  if task.started_at then
    task.last = {executor = task.executor, worker = task.worker, started_at = task.started_at, ended_at = at}
    task.last.locality = task.locality
  end
  task.state = 'queued'
  task.executor = nil
  task.worker = nil
  task.locality = nil
  task.started_at = nil
  task.broken = broken[number] and (tonumber(task.broken) or 0) + 1 or nil
  task.due_at = nil
  if task.broken and task.broken > AT_ONCE then
    task.due_at = at + math.min(2 ^ (task.broken - AT_ONCE - 1), LONGEST_S) * 1000
  end
  redis.call('HDEL', begun, i)
  redis.call('HSET', tasks, i, cjson.encode(task))
  if redis.call('EXISTS', jobs .. i) == 1 then redis.call('HSET', jobs .. i, 'status', 'queued') end
  if task.due_at then redis.call('ZADD', later, task.due_at, i) else queue_task(queue, tasks, id, i, 0) end
end
return #found
end
