-- Closes apps for good. KEYS: `tasks`, `output` and `driver_output` of every app, then queue, `begun`, `later`,
-- `secrets` and `mail` of every app.
--
-- -> for each app the number of jobs created, -1 if it has neither tasks nor output.

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
