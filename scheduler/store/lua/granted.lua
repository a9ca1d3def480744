-- A Lua function: whether the executor's grant is valid.
--
-- A grant is valid while its field in `grants:<worker>` is not empty. An empty value is a tombstone: the grant was
-- revoked, and the worker has not yet confirmed.

local function granted(grants, executor)
  local grant = redis.call('HGET', grants, executor)
  return grant and grant ~= ''
end
