package fairlog.spark;

import org.apache.spark.SparkContext;
import org.apache.spark.scheduler.ExternalClusterManager;
import org.apache.spark.scheduler.SchedulerBackend;
import org.apache.spark.scheduler.TaskScheduler;
import org.apache.spark.scheduler.TaskSchedulerImpl;

/** Takes masters of the form spark+fairlog://COMPANY/USER: spark-submit lets through what begins with "spark". */
public final class FairlogClusterManager implements ExternalClusterManager {
  @Override
  public boolean canCreate(String master) {
    return master.startsWith("spark+fairlog:");
  }

  @Override
  public TaskScheduler createTaskScheduler(SparkContext context, String master) {
    return new TaskSchedulerImpl(context);
  }

  @Override
  public SchedulerBackend createSchedulerBackend(SparkContext context, String master, TaskScheduler scheduler) {
    return new FairlogBackend((TaskSchedulerImpl) scheduler, context, master);
  }

  @Override
  public void initialize(TaskScheduler scheduler, SchedulerBackend backend) {
    ((TaskSchedulerImpl) scheduler).initialize(backend);
  }
}
