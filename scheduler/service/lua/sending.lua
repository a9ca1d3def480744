-- A Lua function: send the messages that `send` is given, unless the lane is full, and ring.

local function send(given)
  local number = tonumber(given[3])
  if redis.call('XLEN', KEYS[1]) + (#given - 3) / number > tonumber(given[2]) then return 1 end
  for i = 4, #given, number do redis.call('XADD', KEYS[1], '*', unpack(given, i, i + number - 1)) end
  if redis.call('LLEN', KEYS[2]) == 0 then redis.call('RPUSH', KEYS[2], given[1]) end
  return 0
end
