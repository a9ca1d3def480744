-- KEYS: the stream, the list of parts that left. ARGV: the last part of the list or "", the id and the digest of the
-- last entry that leaves, the part. -> "" or the reason for refusing.

if (redis.call('LINDEX', KEYS[2], -1) or '') ~= ARGV[1] then return 'others have left meanwhile' end
local last = redis.call('XRANGE', KEYS[1], ARGV[2], ARGV[2])[1]
if not last or last[2][#last[2]] ~= ARGV[3] then return 'the record has another entry at the end of the part' end
local stays = redis.call('XRANGE', KEYS[1], '(' .. ARGV[2], '+', 'COUNT', 1)[1]
if not stays then return 'the last entry must stay' end
redis.call('RPUSH', KEYS[2], ARGV[4])
redis.call('XTRIM', KEYS[1], 'MINID', stays[1])
return ''
