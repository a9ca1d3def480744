# A task that leaves a trace: task.sh HOW SECONDS, in the folder of the traces. HOW is `ok`, `fails` or `fails-once`.
# A line says what happened, the task, its executor, the executor's process and when (ms). A process is known by its
# session and, in a cell, by the cell's namespace. The lock says whether the same task runs already under the same
# executor. A driver is its app's task -1, its id an executor's.
read -r _ _ _ _ _ session _ <"/proc/$$/stat"
process=$session@$(readlink "/proc/$$/ns/pid")
task=${FAIRLOG_TASK_INDEX:--1}
say() { echo "$1 $task $FAIRLOG_EXECUTOR_ID $process $(date +%s%3N 9>&-)" >>"$FAIRLOG_APP_ID.trace"; }
exec 9>>"$FAIRLOG_EXECUTOR_ID.$task.lock"
flock -n 9 || say twice
say begin
sleep "$2" 9>&-
case "$1" in
fails) [ "$task" = 0 ] && exit 3 ;;
fails-once) [ -e "$FAIRLOG_APP_ID.failed" ] || { : >"$FAIRLOG_APP_ID.failed"; exit 4; } ;;
esac
say end
