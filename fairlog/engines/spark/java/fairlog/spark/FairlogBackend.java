package fairlog.spark;

import java.io.BufferedReader;
import java.io.BufferedWriter;
import java.io.IOException;
import java.io.InputStreamReader;
import java.io.OutputStreamWriter;
import java.net.URLDecoder;
import java.net.URLEncoder;
import java.nio.charset.StandardCharsets;
import java.util.ArrayList;
import java.util.List;
import java.util.concurrent.Executors;
import java.util.concurrent.ScheduledExecutorService;
import java.util.concurrent.TimeUnit;
import org.apache.spark.SparkConf;
import org.apache.spark.SparkContext;
import org.apache.spark.rpc.RpcAddress;
import org.apache.spark.resource.ResourceProfile;
import org.apache.spark.scheduler.ExecutorDecommissionInfo;
import org.apache.spark.scheduler.ExecutorExited;
import org.apache.spark.scheduler.SparkListener;
import org.apache.spark.scheduler.SparkListenerExecutorAdded;
import org.apache.spark.scheduler.TaskSchedulerImpl;
import org.apache.spark.scheduler.cluster.CoarseGrainedSchedulerBackend;
import org.apache.spark.scheduler.cluster.SchedulerBackendUtils;
import scala.Option;
import scala.Tuple2;
import scala.collection.Iterator;
import scala.concurrent.Future;
import scala.concurrent.Future$;

/**
 * The backend of a driver whose executors fairlog grants. A helper process speaks with the cluster; the two exchange
 * lines of words separated by tabs. What the helper is told: CONF, ENV, ABOUT, START, ADDED, TOTAL, KILL, STOP. What
 * it answers: READY app executors, LEAVES executor reason, LOST executor code byApp reason, OVER reason.
 */
public final class FairlogBackend extends CoarseGrainedSchedulerBackend {
  private static final int STOP_S = 15;
  private static final int LOST_S = 60;
  private final ScheduledExecutorService later = Executors.newSingleThreadScheduledExecutor(work -> {
    Thread thread = new Thread(work, "fairlog-lost-executors");
    thread.setDaemon(true);
    return thread;
  });
  private final SparkContext context;
  private final String master;
  private Process helper;
  private BufferedWriter out;
  private BufferedReader in;
  private volatile String app;
  private volatile int target;
  private volatile boolean stopping;

  FairlogBackend(TaskSchedulerImpl scheduler, SparkContext context, String master) {
    super(scheduler, context.env().rpcEnv());
    this.context = context;
    this.master = master;
  }

  @Override
  public void start() {
    super.start();
    SparkConf conf = context.getConf();
    try {
      helper = new ProcessBuilder(conf.get("spark.fairlog.helper").split(" "))
          .redirectError(ProcessBuilder.Redirect.INHERIT).start();
      out = new BufferedWriter(new OutputStreamWriter(helper.getOutputStream(), StandardCharsets.UTF_8));
      in = new BufferedReader(new InputStreamReader(helper.getInputStream(), StandardCharsets.UTF_8));
      say("ABOUT", "master", master);
      say("ABOUT", "name", context.appName());
      say("ABOUT", "java", System.getProperty("java.home"));
      say("ABOUT", "home", String.valueOf(System.getenv("SPARK_HOME")));
      say("ABOUT", "driver", "spark://" + ENDPOINT_NAME() + "@" + conf.get("spark.driver.host") + ":"
          + conf.get("spark.driver.port"));
      Option<String> ui = context.uiWebUrl();
      say("ABOUT", "ui", ui.isDefined() ? ui.get() : "");
      for (Tuple2<String, String> each : conf.getAll()) {
        say("CONF", each._1(), each._2());
      }
      Iterator<Tuple2<String, String>> variables = context.executorEnvs().iterator();
      while (variables.hasNext()) {
        Tuple2<String, String> each = variables.next();
        say("ENV", each._1(), each._2());
      }
      say("START", Integer.toString(SchedulerBackendUtils.getInitialTargetExecutorNumber(conf, 2)));
      String[] answer = words(in.readLine());
      if (!answer[0].equals("READY")) {
        throw new IOException(answer.length > 1 ? answer[1] : "its helper ended; see above why");
      }
      app = answer[1];
      target = Integer.parseInt(answer[2]);
      context.addSparkListener(new SparkListener() {
        @Override
        public void onExecutorAdded(SparkListenerExecutorAdded added) {
          say("ADDED", added.executorId());
        }
      });
    } catch (IOException error) {
      throw new IllegalStateException("fairlog: " + error.getMessage(), error);
    }
    Thread listener = new Thread(this::listen, "fairlog-helper");
    listener.setDaemon(true);
    listener.start();
  }

  private void listen() {
    String why = "its helper is gone";
    try {
      for (String line = in.readLine(); line != null; line = in.readLine()) {
        String[] said = words(line);
        if (said[0].equals("LEAVES")) {
          decommissionExecutor(said[1], new ExecutorDecommissionInfo(said[2], Option.empty()), false, false);
        } else if (said[0].equals("LOST")) {
          boolean byApp = Boolean.parseBoolean(said[3]);
          removeExecutor(said[1], new ExecutorExited(Integer.parseInt(said[2]), byApp, said[4]));
        } else if (said[0].equals("OVER")) {
          why = said[1];
          break;
        }
      }
    } catch (IOException error) {
      why = error.getMessage();
    }
    if (!stopping) {
      System.err.println("fairlog: the app ends: " + why);
      context.stop(1);
      System.exit(1);
    }
  }

  private static String[] words(String line) throws IOException {
    String[] found = line == null ? new String[] {""} : line.split("\t", -1);
    for (int i = 0; i < found.length; i++) {
      found[i] = URLDecoder.decode(found[i], "UTF-8");
    }
    return found;
  }

  private synchronized void say(String... words) {
    try {
      for (int i = 0; i < words.length; i++) {
        out.write((i == 0 ? "" : "\t") + URLEncoder.encode(words[i], "UTF-8"));
      }
      out.write('\n');
      out.flush();
    } catch (IOException error) {
      if (!stopping) {
        System.err.println("fairlog: the helper does not listen: " + error.getMessage());
      }
    }
  }

  /** An executor that is disconnected gets no tasks; why it ended, and whether its tasks count, the cluster says. */
  private final class Endpoint extends DriverEndpoint {
    @Override
    public void onDisconnected(RpcAddress address) {
      Option<String> known = addressToExecutorId().get(address);
      if (known.isDefined() && disableExecutor(known.get())) {
        String executor = known.get();
        later.schedule(
            () -> removeExecutor(executor, new ExecutorExited(-1, false, "fairlog: it was not heard of any more")),
            LOST_S, TimeUnit.SECONDS);
      }
    }
  }

  @Override
  public DriverEndpoint createDriverEndpoint() {
    return new Endpoint();
  }

  @Override
  public String applicationId() {
    return app;
  }

  /** By default a driver goes on before it has executors, as with a standalone Master. */
  @Override
  public boolean sufficientResourcesRegistered() {
    double ratio = context.getConf().getDouble("spark.scheduler.minRegisteredResourcesRatio", 0.0);
    return totalRegisteredExecutors().get() >= target * ratio;
  }

  @Override
  public Future<Object> doRequestTotalExecutors(scala.collection.immutable.Map<ResourceProfile, Object> totals) {
    int total = 0;
    Iterator<Object> numbers = totals.values().iterator();
    while (numbers.hasNext()) {
      total += (Integer) numbers.next();
    }
    target = total;
    int preferring = 0;
    Iterator<Object> tasks = numLocalityAwareTasksPerResourceProfileId().values().iterator();
    while (tasks.hasNext()) {
      preferring += (Integer) tasks.next();
    }
    List<String> said = new ArrayList<>();
    said.add("TOTAL");
    said.add(Integer.toString(total));
    said.add(Integer.toString(preferring));
    Iterator<scala.collection.immutable.Map<String, Object>> profiles = rpHostToLocalTaskCount().values().iterator();
    while (profiles.hasNext()) {
      Iterator<Tuple2<String, Object>> hosts = profiles.next().iterator();
      while (hosts.hasNext()) {
        Tuple2<String, Object> each = hosts.next();
        said.add(each._1());
        said.add(String.valueOf(each._2()));
      }
    }
    say(said.toArray(new String[0]));
    return Future$.MODULE$.successful((Object) Boolean.TRUE);
  }

  /** Overrides with Scala 2.12, of Spark 3. */
  public Future<Object> doKillExecutors(scala.collection.Seq<String> executors) {
    List<String> said = new ArrayList<>();
    said.add("KILL");
    Iterator<String> each = executors.iterator();
    while (each.hasNext()) {
      said.add(each.next());
    }
    say(said.toArray(new String[0]));
    return Future$.MODULE$.successful((Object) Boolean.TRUE);
  }

  /** Overrides with Scala 2.13, of Spark 4. */
  public Future<Object> doKillExecutors(scala.collection.immutable.Seq<String> executors) {
    return doKillExecutors((scala.collection.Seq<String>) executors);
  }

  @Override
  public void stop() {
    stopping = true;
    later.shutdownNow();
    say("TOTAL", "0", "0"); // else executors that end now are replaced
    super.stop();
    say("STOP");
    try {
      out.close();
      if (!helper.waitFor(STOP_S, TimeUnit.SECONDS)) {
        helper.destroy();
      }
    } catch (IOException error) {
      helper.destroy();
    } catch (InterruptedException error) {
      Thread.currentThread().interrupt();
    }
  }
}
