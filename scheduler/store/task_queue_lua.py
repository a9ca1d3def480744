"""The Lua scripts of `task_queue`. Each one is atomic.

A grant is valid while its field in `grants:<worker>` is not empty. An empty value is a tombstone: the grant was
revoked, and the worker has not yet confirmed. Scripts read only the id of a queued job; the function named in its data
is never run.
"""

from __future__ import annotations

LONGEST_BACKOFF_S = 300
TOLD_MS = 1_000
"""How often an app's executors are told how many queued tasks prefer each host, if that has changed."""
BROKEN_AT_ONCE = 2
"""After so many executors in a row that ended abnormally, a task that they ran is still handed out at once."""

_GRANTED = """
local function granted(grants, executor)
  local grant = redis.call('HGET', grants, executor)
  return grant and grant ~= ''
end
"""

_QUEUED = """
local function near_of(tasks)
  return (string.gsub(tasks, '^(fairlog:%b{}:)tasks:', '%1near:', 1))
end

local function queue_task(queue, tasks, id, i, class)
  local hosts = redis.call('HGET', tasks, 'hosts:' .. i)
  if hosts and hosts ~= '!' then
    local near, member = near_of(tasks), string.format('\\n%d%06d', class, i)
    redis.call('ZADD', near, 0, member)
    for host in string.gmatch(hosts, '[^\\n]+') do redis.call('ZADD', near, 0, host .. member) end
  else
    redis.call(class == 0 and 'LPUSH' or 'RPUSH', queue, id .. i)
  end
end
"""
"""Lua functions: the key of an app's queued tasks that prefer hosts; queue a task, in class 0 before all others.

`hosts:<i>` are the live hosts that task i prefers, a line each; `!` if none of its hosts has a live worker."""

_LIVE = """
local function add_live(live, company, app, more)
  if company == '' or more == 0 then return end
  local held = tonumber(string.match(redis.call('HGET', live, app) or '', '^%d+') or 0)
  redis.call('HSET', live, app, string.format('%d %s', math.max(0, held + more), company))
  redis.call('HINCRBY', live, '/' .. company, string.format('%d', more))
end

local function fitting(live, company, most, before, ...)
  local room = tonumber(most) - tonumber(company ~= '' and redis.call('HGET', live, '/' .. company) or 0) + before
  local forms = {...}
  for n = 1, #forms - 1 do
    if company == '' or #forms[n] <= math.max(room, before) then return forms[n] end
  end
  return forms[#forms]
end

local function keep_tail(live, company, app, most, output, i, ...)
  local before = #(redis.call('HGET', output, i) or '')
  local tail = fitting(live, company, most, before, ...)
  redis.call('HSET', output, i, tail)
  add_live(live, company, app, #tail - before)
end
"""
"""Lua functions: count output of an app that is not over; the first form of a tail for which the company has room, else
the last form; store a tail so. A company "" is not known, and nothing is counted.

`live` has, for each app that is not over, the size of its output and its company, and for `/COMPANY` the sum. A tail
never makes way for a shorter form of one that is no longer than it."""

FILL = (
    _GRANTED
    + _QUEUED
    + """
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
"""
)
"""Creates up to a chunk of jobs. -> the number left to create; -1 if the executor is not granted or the app is over.

Of an app whose tasks prefer hosts, ARGV[9] says which and how long tasks wait, ARGV[10] where the executor is, and
ARGV[11] the first task of the chunk; the hosts of each of its tasks follow. A chunk that another executor has created
is not created again."""

RESTART = (
    _GRANTED
    + _QUEUED
    + """
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
"""
)
"""Has the tasks that failed before their app was put back run again (semantics X6), a chunk at a time.

-> the number of tasks left to look at; -1 if the executor is not granted or the app is over."""

STEP = (
    (
        _GRANTED
        + _QUEUED
        + _LIVE
        + """
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
  local found = redis.call('ZRANGEBYLEX', near_key, '[' .. host .. '\\n', '(' .. host .. '\\11', 'LIMIT', 0, 1)[1]
  return found and string.format('%d', tonumber(string.sub(found, -6)))
end
local function take_near(i, now_level)
  for host in string.gmatch('\\n' .. redis.call('HGET', tasks, 'hosts:' .. i), '\\n([^\\n]+)') do
    for class = 0, 2 do redis.call('ZREM', near_key, string.format('%s\\n%d%06d', host, class, i)) end
  end
  for class = 0, 2 do redis.call('ZREM', near_key, string.format('\\n%d%06d', class, i)) end
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
    told[1] = tostring(redis.call('ZLEXCOUNT', near_key, '[\\n', '(\\11'))
    for _, host in ipairs(told[1] ~= '0' and near.hosts or {}) do
      local waiting = redis.call('ZLEXCOUNT', near_key, '[' .. host .. '\\n', '(' .. host .. '\\11')
      if waiting > 0 then
        told[#told + 1] = host
        told[#told + 1] = tostring(waiting)
      end
    end
    local said = table.concat(told, '\\n')
    if said == redis.call('HGET', tasks, 'near:told') then
      told = {}
    else
      redis.call('HSET', tasks, 'near:told', said, 'near:told_at', string.format('%d', at))
    end
  end
end
local running, detail = redis.call('HLEN', begun), about[4] or about[9] or ''
return {is_granted and 1 or 0, total, succeeded, failed, detail, taken, refused, mine or {}, running, next_ms, told}
"""
    )
    .replace("LONGEST_S", str(LONGEST_BACKOFF_S))
    .replace("TOLD_MS", str(TOLD_MS))
)
"""Counts completions and hands out tasks. Once the queue is empty, `mine` lists all running tasks of the executor. It
includes tasks whose answer was lost. So does a step that is sent again under its number, ARGV[9] = `LIFE:NUMBER`: it
takes only what the executor has room for beside them, of ARGV[10] tasks at once; one that comes late takes nothing. A
failed task waits before its next attempt (semantics W10); a task whose command cannot be started is tried on one more
worker (semantics W9). That a task was stopped counts if the executor that held it reports it, of its last attempt or of
the last that was broken off. Its last output is kept until its next attempt; what comes after its app was swept counts
for the company that SWEEP noted, or is left out where an older list of the store's users does not allow that."""

RETURN = (
    """QUEUED
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
""".replace("QUEUED", _QUEUED)
    .replace("LONGEST_S", str(LONGEST_BACKOFF_S))
    .replace("AT_ONCE", str(BROKEN_AT_ONCE))
)
"""Lua function: return the running tasks of the executors ARGV[first..last] to the front of the queue. What is known
of the attempt that is broken off stays as `last`: it may have been the task's last one.

A name that begins with `!` is of an executor that ended abnormally. A task whose executors do so again and again waits
before it is handed out (semantics W10).

Masters run it in their commits, so it takes whatever it finds: keys of another type are deleted, and a task whose state
cannot be read begins anew."""

PUT_BACK = f"{RETURN}return return_tasks(KEYS[1], KEYS[2], KEYS[3], KEYS[4], ARGV[1], 2, #ARGV)"
"""Returns the running tasks of executors to the front of the queue. -> their number."""

KEEP_OUTPUT = (
    _LIVE
    + """
local begun, output, live = unpack(KEYS)
local executor, company, app, most = unpack(ARGV)
for n = 5, #ARGV, 4 do
  if redis.call('HGET', begun, ARGV[n]) == executor then
    keep_tail(live, company, app, most, output, ARGV[n], ARGV[n + 1], ARGV[n + 2], ARGV[n + 3])
  end
end
"""
)
"""Stores the output tails of tasks that are running on the executor, each in the first of three forms that fits."""

KEEP_DRIVER_OUTPUT = (
    _LIVE
    + """
local output, live = unpack(KEYS)
local company, app, most, kept_s, tail, short, note = unpack(ARGV)
local before = #(redis.call('GET', output) or '')
tail = fitting(live, company, most, before, tail, short, note)
redis.call('SET', output, tail, 'EX', kept_s)
add_live(live, company, app, #tail - before)
"""
)
"""Stores the tail of a driver's output, in the first of three forms that fits, for ARGV[4] seconds."""

KEEP_PROGRAM_OUTPUT = (
    _LIVE
    + """
local output, live = unpack(KEYS)
local company, app, most, kept_s, number, gone, tail, short, note = unpack(ARGV)
if gone ~= '' then
  add_live(live, company, app, -#(redis.call('HGET', output, gone) or ''))
  redis.call('HDEL', output, gone)
end
keep_tail(live, company, app, most, output, number, tail, short, note)
redis.call('EXPIRE', output, kept_s)
"""
)
"""Stores the tail of the output of an executor's program as `KEEP_DRIVER_OUTPUT` does, and drops that of another."""

KEEP_USED = """
local tasks = KEYS[1]
local once, cpu_ms, peak_mb, kept_s = unpack(ARGV)
if redis.call('HSETNX', tasks, once, 1) == 0 then return end
redis.call('HINCRBY', tasks, 'cpu_ms', cpu_ms)
local most = tonumber(redis.call('HGET', tasks, 'peak_mb') or '') or 0
if tonumber(peak_mb) > most then redis.call('HSET', tasks, 'peak_mb', peak_mb) end
if redis.call('HEXISTS', tasks, 'tasks') == 0 then redis.call('EXPIRE', tasks, kept_s) end
"""
"""Adds what a program has used to its app's counters, unless it was counted. KEYS: `tasks`; ARGV: a field of its own,
CPU time, peak memory, how long (s) the counters of an app without tasks are kept."""

CLOSE = """
local apps = #KEYS / 8
local made = {}
for first = 1, 3 * apps, 3000 do
  local last = math.min(first + 2999, 3 * apps)
  local began = redis.call('EXISTS', unpack(KEYS, first, last)) > 0
  for place = first, last, 3 do
    local tasks, filled = KEYS[place], -1
    if began and redis.call('EXISTS', tasks) == 1 then
      redis.call('HSET', tasks, 'forgotten', 1)
      filled = tonumber(redis.call('HGET', tasks, 'filled') or 0) or 0
    elseif began and redis.call('EXISTS', KEYS[place + 1], KEYS[place + 2]) > 0 then
      filled = 0
    end
    made[#made + 1] = filled
  end
end
for first = 3 * apps + 1, #KEYS, 1000 do
  redis.call('DEL', unpack(KEYS, first, math.min(first + 999, #KEYS)))
end
return made
"""
"""Closes apps for good. KEYS: `tasks`, `output` and `driver_output` of every app, then queue, `begun`, `later`,
`secrets` and `mail` of every app.

-> for each app the number of jobs created, -1 if it has neither tasks nor output."""

SWEEP = """
local tasks, output, driver_output, queue, queues, rq_workers, near, kept, kept_bytes, live = unpack(KEYS)
local kept_s, most, company, app, prefix = ARGV[1], tonumber(ARGV[2]), ARGV[3], ARGV[4], ARGV[5]
for _, worker in ipairs(redis.call('SMEMBERS', rq_workers)) do
  redis.call('SREM', 'rq:workers', worker)
  if string.sub(worker, 1, 10) == 'rq:worker:' then redis.call('DEL', worker) end
end
redis.call('DEL', rq_workers)
redis.call('SREM', queues, queue)
redis.call('DEL', near)
if redis.call('EXISTS', tasks) == 1 then redis.call('HSET', tasks, 'company', company) end
for _, key in ipairs({tasks, output, driver_output}) do redis.call('EXPIRE', key, kept_s) end

local size = 100 * redis.call('HLEN', tasks) + #(redis.call('GET', driver_output) or '')
local written = redis.call('HKEYS', output)
for first = 1, #written, 16 do
  local texts = redis.call('HMGET', output, unpack(written, first, math.min(first + 15, #written)))
  for _, text in ipairs(texts) do size = size + #(text or '') end
end
local held, owner = string.match(redis.call('HGET', live, app) or '', '^(%d+) (.*)$')
if held then
  redis.call('HDEL', live, app)
  local left = redis.call('HINCRBY', live, '/' .. owner, '-' .. held)
  if left <= 0 then redis.call('HDEL', live, '/' .. owner) end
end
redis.call('RPUSH', kept, string.format('%d %s', size, app))
redis.call('EXPIRE', kept, kept_s)
local total = redis.call('HINCRBY', kept_bytes, company, string.format('%d', size))
while total > most do
  local first = redis.call('LPOP', kept)
  if not first then
    redis.call('HDEL', kept_bytes, company)
    break
  end
  local its, name = string.match(first, '^(%d+) (.*)$')
  total = redis.call('HINCRBY', kept_bytes, company, '-' .. its)
  local states = prefix .. 'tasks:' .. name
  if redis.call('EXISTS', states) == 0 or redis.call('HEXISTS', states, 'forgotten') == 1 then
    redis.call('DEL', states, prefix .. 'output:' .. name, prefix .. 'driver-output:' .. name)
  end
end
"""
"""Deletes RQ's records of the queue and its workers, and no other key that the set of workers names.

Task states and output expire after ARGV[1] seconds. If those of the company exceed ARGV[2] bytes, the oldest are
deleted: so no tenant fills the store. A state counts as 100 bytes. The output is none of an app that runs any more."""
