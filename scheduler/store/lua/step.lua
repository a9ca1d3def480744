-- Counts completions and hands out tasks. Once the queue is empty, `mine` lists all running tasks of the executor. It
-- includes tasks whose answer was lost. So does a step that is sent again under its number, ARGV[9] = `LIFE:NUMBER`:
-- it takes only what the executor has room for beside them, of ARGV[10] tasks at once; one that comes late takes
-- nothing. A failed task waits before its next attempt (semantics W10); a task whose command cannot be started is
-- tried on one more worker (semantics W9). That a task was stopped counts if the executor that held it reports it, of
-- its last attempt or of the last that was broken off. Its last output is kept until its next attempt; what comes
-- after its app was swept counts for the company that `sweep` noted, or is left out where an older list of the store's
-- users does not allow that.
--
-- with granted, queued, live

local TOLD_MS = 1000  -- how often an app's executors are told how many tasks prefer each host, if that has changed
local queue, tasks, begun, output, grants, later, live = unpack(KEYS)
local executor, want, retries, backoff_s = ARGV[1], tonumber(ARGV[2]), tonumber(ARGV[3]), tonumber(ARGV[4])
local id, now, rq_worker, worker, turn, slots = ARGV[5], ARGV[6], ARGV[7], ARGV[8], ARGV[9], tonumber(ARGV[10])
local owner, app, most = ARGV[11], ARGV[12], ARGV[13]
local jobs = 'rq:job:' .. id
local clock = redis.call('TIME')
local at = clock[1] * 1000 + math.floor(clock[2] / 1000)
local finished = false

local function keep_last(i, tail, ...)
  local before = redis.call('HGET', output, i) or ''
  if tail == '' or tail == before then return end
  local company = redis.call('HGET', tasks, 'company')
  if not company then return keep_tail(live, owner, app, most, output, i, tail, ...) end
  local kept = string.match(tasks, '^(fairlog:%b{}:)tasks:') .. 'kept'
  local more = string.format('%d', math.max(0, #tail - #before))
  if type(redis.pcall('HINCRBY', kept, company, more)) ~= 'number' then return end
  redis.call('RPUSH', kept .. ':' .. company, more .. ' ' .. app)
  redis.call('HSET', output, i, tail)
  redis.call('PEXPIRE', output, math.max(1, redis.call('PTTL', tasks)))
end

local function complete(i, attempt, outcome, exit_code, message, cpu_ms, peak_mb, output_bytes, tail, ...)
  local known = redis.call('HGET', tasks, i)
  local is_stopped = outcome == 'stopped' and known
  if not is_stopped and redis.call('HGET', begun, i) ~= executor then return end
  local task = cjson.decode(known)
  if is_stopped then
    local number = tonumber(attempt) or 0
    if number > task.attempts or number <= (task.stopped or 0) then return end
    local holder = number == task.attempts and task.executor or task.last and task.last.executor
    if holder ~= executor then return end
    task.stopped = number
    if number == task.attempts and not task.ended_at then keep_last(i, tail, ...) end
  else
    if attempt ~= '' and tonumber(attempt) ~= task.attempts then return end
    task.broken = nil
    task.ended_at = at
    task.exit_code = tonumber(exit_code)
    task.message = message
  end
  task.cpu_ms = (task.cpu_ms or 0) + cpu_ms
  task.output_bytes = (task.output_bytes or 0) + output_bytes
  task.peak_mb = math.max(task.peak_mb or 0, peak_mb)
  redis.call('HINCRBY', tasks, 'cpu_ms', string.format('%d', cpu_ms))
  redis.call('HINCRBY', tasks, 'output_bytes', string.format('%d', output_bytes))
  if peak_mb > tonumber(redis.call('HGET', tasks, 'peak_mb') or -1) then
    redis.call('HSET', tasks, 'peak_mb', string.format('%d', peak_mb))
  end
  if is_stopped then
    redis.call('HSET', tasks, i, cjson.encode(task))
    return
  end
  redis.call('HDEL', begun, i)
  if tail ~= '' then keep_tail(live, owner, app, most, output, i, tail, ...) end
  if outcome == 'succeeded' then
    task.state = 'succeeded'
    finished = true
    redis.call('HINCRBY', tasks, 'succeeded', 1)
    redis.call('DEL', jobs .. i)
  elseif outcome == 'cancelled' then
    task.state = 'cancelled'
    redis.call('HINCRBY', tasks, 'cancelled', 1)
    redis.call('HSETNX', tasks, 'cancelled:detail', message)
    redis.call('DEL', jobs .. i)
  elseif outcome == 'returned' or outcome == 'unstartable' and (task.tried or worker) == worker then
    task.state = 'queued'
    if outcome == 'unstartable' then task.tried = worker end
    queue_task(queue, tasks, id, i, 0)
    redis.call('HSET', jobs .. i, 'status', 'queued')
  else
    task.failures = task.failures + 1
    if outcome == 'failed' and task.failures <= retries then
      task.state = 'queued'
      if backoff_s > 0 then
        task.due_at = at + math.min(backoff_s * 2 ^ (task.failures - 1), LONGEST_S) * 1000
        redis.call('ZADD', later, task.due_at, i)
      else
        queue_task(queue, tasks, id, i, 2)
      end
      redis.call('HSET', jobs .. i, 'status', 'queued')
    else
      task.state = 'failed'
      redis.call('HINCRBY', tasks, 'failed', 1)
      redis.call('HSETNX', tasks, 'detail', message)
      redis.call('DEL', jobs .. i)
    end
  end
  redis.call('HSET', tasks, i, cjson.encode(task))
end

for n = 14, #ARGV, 11 do
  local cpu_ms, peak_mb, output_bytes = tonumber(ARGV[n + 5]), tonumber(ARGV[n + 6]), tonumber(ARGV[n + 7])
  complete(ARGV[n], ARGV[n + 1], ARGV[n + 2], ARGV[n + 3], ARGV[n + 4], cpu_ms, peak_mb, output_bytes,
    ARGV[n + 8], ARGV[n + 9], ARGV[n + 10])
end
if finished then redis.call('HSET', tasks, 'finished:' .. executor, 1) end

local is_granted = granted(grants, executor)
local about = redis.call('HMGET', tasks, 'tasks', 'succeeded', 'failed', 'detail', 'forgotten', 'near', 'keep_going',
  'cancelled', 'cancelled:detail')
local total, succeeded = tonumber(about[1] or 0), tonumber(about[2] or 0)
local failed = tonumber(about[3] or 0)
local cancelled = tonumber(about[8] or 0)
if succeeded + failed + cancelled >= total then
  failed = failed + cancelled
else
  succeeded = succeeded + cancelled
  if about[7] then succeeded, failed = succeeded + failed, 0 end
end
local taken, refused, mine = {}, {}, nil
local function held()
  mine = {}
  local all = redis.call('HGETALL', begun)
  for n = 1, #all, 2 do
    if all[n + 1] == executor then
      mine[#mine + 1] = {tonumber(all[n]), cjson.decode(redis.call('HGET', tasks, all[n])).attempts}
    end
  end
  return mine
end
if want > 0 and turn ~= '' and is_granted and total > 0 then
  local life, number = string.match(turn, '^(%x+):(%d+)$')
  local before, last = string.match(redis.call('HGET', tasks, 'step:' .. executor) or '', '^(%x+):(%d+)$')
  if before == life and tonumber(number) <= tonumber(last) then
    want = number == last and math.max(0, math.min(want, slots - #held())) or 0
    mine = mine or {}
  else
    redis.call('HSET', tasks, 'step:' .. executor, turn)
  end
end
if want > 0 then
  for _, i in ipairs(redis.call('ZRANGEBYSCORE', later, '-inf', at, 'LIMIT', 0, want)) do
    redis.call('ZREM', later, i)
    local known = redis.call('HGET', tasks, i)
    if known then
      local task = cjson.decode(known)
      task.due_at = nil
      redis.call('HSET', tasks, i, cjson.encode(task))
    end
    queue_task(queue, tasks, id, i, 2)
  end
end
local near, told = about[6] and cjson.decode(about[6]), {}
local near_key, level, since, place
if near then
  near_key = near_of(tasks)
  local known = redis.call('HMGET', tasks, 'near:level', 'near:since', 'place:' .. executor)
  level, since = tonumber(known[1] or 0), tonumber(known[2] or at)
  place = known[3] and cjson.decode(known[3]) or {host = '', racked = {}}
end
local function first_of(host)
  local found = redis.call('ZRANGEBYLEX', near_key, '[' .. host .. '\n', '(' .. host .. '\11', 'LIMIT', 0, 1)[1]
  return found and string.format('%d', tonumber(string.sub(found, -6)))
end
local function take_near(i, now_level)
  for host in string.gmatch('\n' .. redis.call('HGET', tasks, 'hosts:' .. i), '\n([^\n]+)') do
    for class = 0, 2 do redis.call('ZREM', near_key, string.format('%s\n%d%06d', host, class, i)) end
  end
  for class = 0, 2 do redis.call('ZREM', near_key, string.format('\n%d%06d', class, i)) end
  level, since = now_level, at
  return id .. i
end
local function next_near()
  local i = place.host ~= '' and first_of(place.host)
  if i then return take_near(i, 0), 'host' end
  local job = redis.call('LPOP', queue)
  if job then return job, nil end
  while level < 2 and at - since >= near.waits[level + 1] do
    since = since + near.waits[level + 1]
    level = level + 1
  end
  for _, host in ipairs(level > 0 and place.racked or {}) do
    i = first_of(host)
    if i then return take_near(i, 1), 'rack' end
  end
  i = level > 1 and first_of('')
  if i then return take_near(i, 2), 'any' end
  return false, nil
end
if is_granted and not about[5] and failed == 0 then
  while #taken < want do
    local job, locality
    if near then job, locality = next_near() else job = redis.call('LPOP', queue) end
    if not job then break end
    local i = nil
    if string.sub(job, 1, #id) == id then i = string.match(string.sub(job, #id + 1), '^%d+$') end
    if not i or tonumber(i) >= total then
      redis.call('DEL', 'rq:job:' .. job)
      refused[#refused + 1] = job
    else
      local known = redis.call('HGET', tasks, i)
      local task = known and cjson.decode(known) or {state = 'queued', attempts = 0, failures = 0}
      if task.state == 'queued' then
        task.state = 'running'
        task.attempts = task.attempts + 1
        task.executor = executor
        task.worker = worker
        task.started_at = at
        task.ended_at = nil
        task.due_at = nil
        if near then task.locality = locality or redis.call('HEXISTS', tasks, 'hosts:' .. i) == 1 and 'any' or nil end
        redis.call('HSET', tasks, i, cjson.encode(task))
        redis.call('HSET', begun, i, executor)
        redis.call('HSET', jobs .. i, 'status', 'started', 'started_at', now, 'worker_name', rq_worker)
        taken[#taken + 1] = {tonumber(i), task.attempts}
      end
    end
  end
end
local next_ms = -1
if want > #taken then
  local first = redis.call('ZRANGE', later, 0, 0, 'WITHSCORES')
  if first[2] then next_ms = math.max(0, tonumber(first[2]) - at) end
  held()
end
if near and is_granted and not about[5] then
  if want > 0 then redis.call('HSET', tasks, 'near:level', level, 'near:since', string.format('%d', since)) end
  if at - tonumber(redis.call('HGET', tasks, 'near:told_at') or 0) >= TOLD_MS then
    told[1] = tostring(redis.call('ZLEXCOUNT', near_key, '[\n', '(\11'))
    for _, host in ipairs(told[1] ~= '0' and near.hosts or {}) do
      local waiting = redis.call('ZLEXCOUNT', near_key, '[' .. host .. '\n', '(' .. host .. '\11')
      if waiting > 0 then
        told[#told + 1] = host
        told[#told + 1] = tostring(waiting)
      end
    end
    local said = table.concat(told, '\n')
    if said == redis.call('HGET', tasks, 'near:told') then
      told = {}
    else
      redis.call('HSET', tasks, 'near:told', said, 'near:told_at', string.format('%d', at))
    end
  end
end
local running, detail = redis.call('HLEN', begun), about[4] or about[9] or ''
return {is_granted and 1 or 0, total, succeeded, failed, detail, taken, refused, mine or {}, running, next_ms, told}
