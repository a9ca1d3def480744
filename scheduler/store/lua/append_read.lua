-- KEYS: the stream, the list of parts that left. ARGV: the digest of the last entry, that of an empty stream, the
-- fields and values. -> the number of entries, 0 if it was not appended because another entry is the last one; the
-- last part of the list or "".

local last = redis.call('XREVRANGE', KEYS[1], '+', '-', 'COUNT', 1)[1]
if (last and last[2][#last[2]] or ARGV[2]) ~= ARGV[1] then return {0, ''} end
redis.call('XADD', KEYS[1], '*', unpack(ARGV, 3))
return {redis.call('XLEN', KEYS[1]), redis.call('LINDEX', KEYS[2], -1) or ''}
