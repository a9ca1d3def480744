-- KEYS: log, name of the current draft, draft, archive, list of snapshots, draft of a snapshot, that snapshot, draft
-- of the reads, reads, draft of the list of reads that left the store, that list. ARGV: the last entry's id and
-- digest, the snapshot's position (or empty), the archived segments.

if redis.call('EXISTS', KEYS[1]) == 1 then return 'log' end
local last = redis.call('XREVRANGE', KEYS[3], '+', '-', 'COUNT', 1)[1]
if redis.call('GET', KEYS[2]) ~= KEYS[3] or not last or last[1] ~= ARGV[1]
    or last[2][#last[2]] ~= ARGV[2] or (ARGV[3] ~= '' and redis.call('EXISTS', KEYS[6]) == 0) then
  return 'draft'
end
redis.call('DEL', KEYS[2], KEYS[4], KEYS[5])
redis.call('RENAME', KEYS[3], KEYS[1])
redis.call('PERSIST', KEYS[1])
if ARGV[3] ~= '' then
  redis.call('RENAME', KEYS[6], KEYS[7])
  redis.call('PERSIST', KEYS[7])
  redis.call('LPUSH', KEYS[5], ARGV[3])
end
for n = 4, #ARGV do redis.call('RPUSH', KEYS[4], ARGV[n]) end
if redis.call('EXISTS', KEYS[8]) == 1 then
  redis.call('DEL', KEYS[11])
  for n = 8, 10, 2 do
    if redis.call('EXISTS', KEYS[n]) == 1 then
      redis.call('RENAME', KEYS[n], KEYS[n+1])
      redis.call('PERSIST', KEYS[n+1])
    end
  end
end
return 'done'
