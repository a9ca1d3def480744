-- KEYS: the sign; ARGV: the gap (ms) that counts, the time (ms) between two signs on disk, what is added.

local time = redis.call('TIME')
local now = time[1] * 1000 + math.floor(time[2] / 1000)
local since, at, kept = string.match(redis.call('GET', KEYS[1]) or '', '^(%d+) (%d+) (%d+)')
since, at, kept = tonumber(since), tonumber(at), tonumber(kept)
if not since or now - at > tonumber(ARGV[1]) then since, kept = now, nil end
if not kept or now - kept > tonumber(ARGV[2]) then
  kept = now
elseif redis.set_repl then
  redis.set_repl(redis.REPL_NONE)
end
redis.call('SET', KEYS[1], string.format('%.0f %.0f %.0f', since, now, kept) .. ARGV[3])
