-- Returns the running tasks of executors to the front of the queue. -> their number.
--
-- with return_tasks

return return_tasks(KEYS[1], KEYS[2], KEYS[3], KEYS[4], ARGV[1], 2, #ARGV)
