-- Deletes a key of another type, which only something else than a master can have written.

local function sound(key, kind)
  local found = redis.call('TYPE', key)['ok']
  if found ~= kind and found ~= 'none' then redis.call('DEL', key) end
end
