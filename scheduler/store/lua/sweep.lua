-- Deletes RQ's records of the queue and its workers, and no other key that the set of workers names.
--
-- Task states and output expire after ARGV[1] seconds. If those of the company exceed ARGV[2] bytes, the oldest are
-- deleted: so no tenant fills the store. A state counts as 100 bytes. The output is none of an app that runs any more.

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
