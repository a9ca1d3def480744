-- KEYS: log, archive, a snapshot after the segment. ARGV: the last listed segment or "", the new segment's first
-- position, its last id and digest, the first id to keep, the new segment. Returns "" or the reason for refusing.

local log, archive, snapshot = KEYS[1], KEYS[2], KEYS[3]
if (redis.call('LINDEX', archive, -1) or '') ~= ARGV[1] then return 'another process has archived meanwhile' end
local first = redis.call('XRANGE', log, '-', '+', 'COUNT', 1)[1]
local last = redis.call('XREVRANGE', log, '+', '-', 'COUNT', 1)[1]
local ends = redis.call('XRANGE', log, ARGV[3], ARGV[3])[1]
if not first or first[2][2] ~= ARGV[2] then return 'the log no longer begins with the segment' end
if not ends or ends[2][#ends[2]] ~= ARGV[4] then return 'the log has another entry at the end of the segment' end
if last[1] == ARGV[3] then return 'the last entry of the log must stay' end
if redis.call('EXISTS', snapshot) == 0 then return 'the snapshot that covers the segment is missing' end
redis.call('RPUSH', archive, ARGV[6])
redis.call('XTRIM', log, 'MINID', ARGV[5])
return ''
