-- How long a failed task waits at most for its next attempt (s, semantics W10). Lua functions: the key of an app's
-- queued tasks that prefer hosts; queue a task, in class 0 before all others.
--
-- `hosts:<i>` are the live hosts that task i prefers, a line each; `!` if none of its hosts has a live worker.

local LONGEST_S = 300

local function near_of(tasks)
  return (string.gsub(tasks, '^(fairlog:%b{}:)tasks:', '%1near:', 1))
end

local function queue_task(queue, tasks, id, i, class)
  local hosts = redis.call('HGET', tasks, 'hosts:' .. i)
  if hosts and hosts ~= '!' then
    local near, member = near_of(tasks), string.format('\n%d%06d', class, i)
    redis.call('ZADD', near, 0, member)
    for host in string.gmatch(hosts, '[^\n]+') do redis.call('ZADD', near, 0, host .. member) end
  else
    redis.call(class == 0 and 'LPUSH' or 'RPUSH', queue, id .. i)
  end
end
