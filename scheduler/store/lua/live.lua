-- Lua functions: count output of an app that is not over; the first form of a tail for which the company has room,
-- else the last form; store a tail so. A company "" is not known, and nothing is counted.
--
-- `live` has, for each app that is not over, the size of its output and its company, and for `/COMPANY` the sum. A
-- tail never makes way for a shorter form of one that is no longer than it.

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
