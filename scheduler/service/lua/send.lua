-- KEYS: a lane of the inbox, the master's RQ queue. ARGV: the bell's job id, the most messages of the lane, the number
-- of fields and values of a message, then these in turn (`scheduler.service.signing`). -> 1 if the lane is full and
-- nothing was sent, else 0. Sending and ringing are one atomic step.
--
-- with sending

return send(ARGV)
