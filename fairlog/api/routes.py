"""The table of what can be asked over HTTP. The server's routes and its description are made from it."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, Protocol, get_type_hints

from msgspec import defstruct

from fairlog.api.addresses import VIEWS
from fairlog.api.questions import MANY, PAGE, MailboxText, OfDriver, OtherRules, SignIn
from scheduler.model import answers, commands, events
from scheduler.model.causes import CAUSES
from scheduler.model.commands import Command
from scheduler.rules.checks.validate import in_force
from scheduler.rules.command.permission import VERB_OF, Verb
from scheduler.store.tails import STREAMS
from scheduler.store.visits import Call, VisitCommand
from witness.board import SORTS, STATES

if TYPE_CHECKING:
    from msgspec import Struct

    from fairlog.api.board import Board
    from fairlog.api.handlers import Handlers
    from fairlog.api.pages import Viewed

Answer = Literal[
    "receipt", "answers", "value", "list", "events", "output", "metrics", "open", "sign-in", "session", "pass", "work"
]
"""What a route answers: a receipt, receipts and problems of a batch, one value, a page of a list, server-sent events,
bytes, Prometheus' text, JSON to anyone, who needs no token, likewise for who signs in, a session of the page, the pass
of a driver, or what a worker is told."""
Pool = Literal["commands", "reads", "views", "work"]
NUMBERS = frozenset({"task", "position"})
"""The parameters in a path that are numbers."""
LONG_COST = 20
OPEN: tuple[Answer, ...] = ("open", "sign-in")
"""What needs no token."""
BARE: tuple[Answer, ...] = ("open", "session")
"""What is answered as it is."""
WRAPPED: tuple[Answer, ...] = ("sign-in", "pass")
"""What is answered as `value`, without a position of the log."""


class Answering(Protocol):
    """Whose methods answer."""

    handlers: Handlers
    board: Board


class Param(NamedTuple):
    """A parameter in the query or the header; those in a path are texts and named there."""

    name: str
    schema: dict[str, Any]
    text: str
    place: Literal["query", "header"] = "query"
    required: bool = False


class Route(NamedTuple):
    """A method and a path, the row of the matrix that allows it, and what answers it.

    `takes` is the command that the body and the path are the fields of; `asks` what the body of a question is; `view`
    the view that is shown. `shows` is the type of the value that is answered, or of an item of the list, such as a
    struct of `scheduler.model.answers`. What workers ask has as its body, and as its answer, the structs of
    `workers.door` that `reads` and `tells` name; "" is an empty object.

    `handler` gives what answers it; `pool` is whose threads run that: `commands` wait for the master, `reads` for the
    store, a past state or another process, `views` compute on what is in memory, `work` is what workers ask. What is
    `long` is made of the whole log, and costs a token as much as `LONG_COST` further requests. After it, a route that
    `rings` wakes the agents of workers for which the handler has left something. `app_in` is the parameter of the query
    that, where it names one app, names the app that is asked about, as `{app}` in a path does.
    """

    method: str
    path: str
    name: str
    verb: Verb | Literal[""]
    text: str
    answer: Answer
    takes: type[Command] | None = None
    view: str = ""
    params: tuple[Param, ...] = ()
    asks: type[Struct] | None = None
    reads: str = ""
    tells: str = ""
    shows: Any = None
    handler: Callable[[Answering], Callable[..., Any]] | None = None
    pool: Pool = "reads"
    long: bool = False
    rings: bool = False
    app_in: str = ""

    @property
    def names(self) -> list[str]:
        """The parameters in the path."""
        return [part[1:-1] for part in self.path.split("/") if part.startswith("{")]


_SEQ = {"type": "integer", "minimum": 0, "maximum": 2**53}
_AT = Param("at", _SEQ, "Show the state at this log position.")
AFTER = Param("after", _SEQ, "Wait until the state holds the log up to this position.")
_FRESH = Param("fresh", {"type": "boolean"}, "Wait until the state holds all that is committed now.")
_MONTH = Param(
    "month",
    {"type": "string", "pattern": r"^\d{4}-\d{2}$", "maxLength": 7},
    "YYYY-MM, in UTC.",
    required=True,
)
_CURSOR = Param("cursor", {"type": "string", "maxLength": 300}, "Where to go on: `next` of the page before.")
_LIMIT = Param("limit", {"type": "integer", "minimum": 1, "maximum": PAGE}, "The most items of the page.")
_UP_TO = Param(
    "limit", {"type": "integer", "minimum": 1, "maximum": MANY}, f"The most items of the page.  [default: {PAGE}]"
)
_SEEN = Param("If-None-Match", {"type": "string"}, "The ETag of the answer that the caller has.", "header")
_KEY = Param(
    "Idempotency-Key",
    {"type": "string", "minLength": 1, "maxLength": 128, "pattern": r"^[!-~]+$"},
    "However often a command is sent with the same key, it is carried out once. Keys belong to the account: the id of "
    "the command is `ACCOUNT:KEY`, or its SHA-256 in hex if that has more than 128 characters. For a caller without a "
    "token the id is the key itself.",
    "header",
)
_REASON = Param(
    "reason", {"type": "string", "minLength": 1, "maxLength": 200}, "Why an operator reads what is private."
)
_STREAM = Param("stream", {"type": "string", "enum": list(STREAMS)}, "Only what was written to this one.")
_TASK = Param("task", {"type": "string", "pattern": "^([0-9]{1,9}|driver)$"}, 'Only of this task, or of the "driver".')
_FROM = Param("after", _SEQ, "Events after this log position.")
_RESUME = Param("Last-Event-ID", {"type": "string", "pattern": "^[0-9]{1,15}$"}, "As `after`, and stronger.", "header")


def _do(method: str, path: str, takes: type[Command], text: str, *, verb: Verb | None = None) -> Route:
    """A route for a command; `verb` if one's own may be meant, which needs less than the verb of others."""
    name = takes.__name__[0].lower() + takes.__name__[1:]
    return Route(method, path, name, verb or VERB_OF[takes], text, "receipt", takes, params=(_KEY,))


_VERBS: dict[str, Verb] = {"apps": "read", "app": "read", "accounts": "users", "tokens": "tokens"}
"""View -> the verb for one of its items; the others show the cluster."""


SettingsShown = defstruct(
    "SettingsShown",
    [(each, get_type_hints(events.ClusterConfigured)[each]) for each in in_force(events.ClusterConfigured())],
)
SettingsShown.__doc__ = "The settings in force (docs/settings.md)."
_SHOWN: dict[str, Any] = {
    "apps": answers.AppListed,
    "app": answers.AppDetails,
    "workers": answers.WorkerShown,
    "accounts": answers.AccountShown,
    "tokens": answers.TokenShown,
    "resources": answers.KindShown,
    "companies": answers.CompanyShown,
    "shares": answers.SharesShown,
    "limits": answers.LimitShown,
    "windows": answers.WindowShown,
    "departments": answers.DepartmentShown,
    "settings": SettingsShown,
    "edition": answers.Edition,
    "cluster": answers.ClusterShown,
    "demand": answers.UnmetDemand,
}
"""View -> what it shows, or an item of it."""


def _see(view: str, text: str, *, many: bool = False, more: tuple[Param, ...] = (), app_in: str = "") -> Route:
    page = (_CURSOR, _UP_TO if view == "apps" else _LIMIT) if many else ()
    return Route(
        "GET",
        VIEWS[view],
        view,
        _VERBS.get(view, "cluster-read"),
        text,
        "list" if many else "value",
        view=view,
        shows=_SHOWN[view],
        params=(_AT, AFTER, _FRESH, *page, *more, _SEEN),
        app_in=app_in,
    )


def _work(
    path: str,
    name: str,
    text: str,
    reads: str = "",
    tells: str = "",
    *,
    handler: Callable[[Answering], Callable[..., Any]] | None = None,
    pool: Pool = "work",
) -> Route:
    params = (_TAG, _WAIT) if tells == "Holding" else ()
    method = "GET" if tells in {"Holding", "Removal"} else "POST"
    return Route(
        method, path, name, "work", text, "work", params=params, reads=reads, tells=tells, handler=handler, pool=pool
    )


def _follow(path: str, name: str, verb: Verb, text: str) -> Route:
    return Route("GET", path, name, verb, text, "events", params=(_FROM, _REASON, _RESUME))


_TAG = Param("after", {"type": "string", "maxLength": 64}, "The tag of the answer that the worker has.")
_MAIL_WAIT = Param("wait", {"type": "integer", "minimum": 0, "maximum": 10_000}, "Wait so long (ms) for it.")
_WAIT = Param("wait", {"type": "integer", "minimum": 0, "maximum": 30_000}, "Wait so long (ms) for another one.")


def _show(
    path: str,
    name: str,
    text: str,
    shows: type[Struct],
    *more: Param,
    handler: Callable[[Answering], Callable[..., Viewed]],
    verb: Verb = "cluster-read",
    long: bool = False,
) -> Route:
    """A part of the page."""
    params = (_AT, *more, _SEEN)
    return Route("GET", path, name, verb, text, "value", params=params, shows=shows, handler=handler, long=long)


_FLAG = {"type": "boolean"}
_LIST = {"type": "string", "minLength": 1, "maxLength": 40_000}
_OF_WORKER = "/v1/workers/{worker}"
_OF_EXECUTOR = "/v1/workers/{worker}/executors/{executor}"
_NAMED = {"type": "string", "minLength": 1, "maxLength": 128}
_COMPANY, _USER, _APP = (Param(name, _NAMED, f"Only those of this {name}.") for name in ("company", "user", "app"))
_MOST = Param("limit", {"type": "integer", "minimum": 1, "maximum": 200}, "The most items.")
ROUTES: tuple[Route, ...] = (
    Route("GET", "/v1/health", "health", "", "Whether this server can answer.", "open", shows=answers.Alive),
    Route("GET", "/openapi.json", "openapi", "", "This description.", "open", shows=dict[str, Any]),
    Route(
        "GET",
        "/v1/sign-in",
        "provider",
        "",
        "The OpenID provider at which people sign in.",
        "sign-in",
        shows=answers.LoginProvider,
    ),
    Route(
        "POST",
        "/v1/sign-in",
        "signIn",
        "",
        "Issue a token for whoever the provider's code names.",
        "sign-in",
        asks=SignIn,
        shows=answers.SignedInAs,
    ),
    Route("GET", "/metrics", "metrics", "cluster-read", "Figures of the cluster for Prometheus.", "metrics"),
    Route(
        "GET",
        "/v1/whoami",
        "whoami",
        "",
        "The account of the caller, its role and scopes.",
        "value",
        shows=answers.WhoAmI,
        handler=lambda door: door.handlers.views.whoami,
        pool="views",
    ),
    Route(
        "GET",
        "/v1/status",
        "status",
        "cluster-read",
        "The health in a sentence, the conditions that hold, the masters and the workers.",
        "value",
        params=(AFTER, _FRESH, _SEEN),
        shows=answers.Status,
        handler=lambda door: door.handlers.health.status,
    ),
    Route(
        "POST",
        "/v1/commands",
        "commands",
        "",
        "Carry out up to 1,000 commands in order.",
        "answers",
        params=(_KEY,),
    ),
    _do("POST", "/v1/apps", commands.SubmitApp, "Submit an app."),
    _do("POST", "/v1/apps/{app}/kill", commands.KillApp, "Kill an app."),
    _do("POST", "/v1/apps/{app}/signal", commands.SignalApp, "Send a signal to the tasks of an app that run."),
    _do("POST", "/v1/apps/{app}/cancel", commands.CancelTask, "Cancel one task of an app."),
    _do("POST", "/v1/apps/{app}/requeue", commands.RequeueApp, "Put an app back into its queue."),
    _do("POST", "/v1/apps/{app}/scale", commands.ScaleApp, "Change an app's demand."),
    _do("POST", "/v1/apps/{app}/hold", commands.HoldApp, "Keep a pending app from starting."),
    _do("POST", "/v1/apps/{app}/release", commands.ReleaseApp, "Let an app on hold start."),
    _do("POST", "/v1/apps/{app}/reprioritize", commands.ReprioritizeApp, "Change an app's priority."),
    _do("POST", "/v1/apps/{app}/extend", commands.ExtendApp, "Let an app run longer."),
    _do("POST", "/v1/apps/{app}/kill-executors", commands.KillExecutors, "Kill executors of an app."),
    _do("POST", "/v1/apps/{app}/finish", commands.FinishApp, "End an app of executor programs."),
    Route(
        "POST",
        "/v1/apps/{app}/beat",
        "beat",
        "submit",
        "Give a sign of life of the owner of an app, which has a lease.",
        "value",
        shows=answers.OwnerState,
        handler=lambda door: door.handlers.apps.beat,
    ),
    Route(
        "PUT",
        "/v1/apps/{app}/mail/{name}",
        "publish",
        "submit",
        "Leave a message in an app's mailbox; one whose name begins with `link.` is an address to open.",
        "value",
        asks=MailboxText,
        shows=answers.MailName,
        handler=lambda door: door.handlers.apps.publish,
    ),
    Route(
        "GET",
        "/v1/apps/{app}/mail/{name}",
        "message",
        "submit",
        "A message of an app's mailbox; null if there is none.",
        "value",
        params=(_MAIL_WAIT,),
        shows=answers.Mail,
        handler=lambda door: door.handlers.apps.message,
    ),
    Route(
        "GET",
        "/v1/apps/{app}/links",
        "links",
        "read",
        "The addresses of an app's user interfaces.",
        "value",
        shows=dict[str, str],
        handler=lambda door: door.handlers.apps.links,
    ),
    Route(
        "POST",
        "/v1/apps/{app}/exec",
        "exec",
        "private",
        "Run a command in the cell of an app's executor, beside its tasks.",
        "value",
        asks=VisitCommand,
        shows=answers.VisitBegun,
        handler=lambda door: door.handlers.apps.exec,
        rings=True,
    ),
    Route(
        "POST",
        "/v1/apps/{app}/exec/{visit}",
        "execCall",
        "read",
        "Exchange input and output of a command that runs in an executor's cell.",
        "value",
        asks=Call,
        shows=answers.VisitReply,
        handler=lambda door: door.handlers.apps.exec_call,
    ),
    _do("POST", "/v1/companies", commands.RegisterCompany, "Add a company."),
    _do("PATCH", "/v1/companies/{company}", commands.ChangeCompany, "Change a company and its quota."),
    _do("DELETE", "/v1/companies/{company}", commands.RemoveCompany, "Remove a company."),
    _do("POST", "/v1/companies/{company}/move", commands.MoveCompany, "Put a company into a department."),
    _do("POST", "/v1/departments", commands.AddDepartment, "Add a department."),
    _do("PATCH", "/v1/departments/{department}", commands.ChangeDepartment, "Change a department."),
    _do("DELETE", "/v1/departments/{department}", commands.RemoveDepartment, "Remove a department."),
    _do("PUT", "/v1/limits", commands.SetLimit, "Set or remove a limit."),
    _do("POST", "/v1/resources", commands.RegisterKind, "Register a kind of resources."),
    _do("PATCH", "/v1/settings", commands.ConfigureCluster, "Change settings."),
    _do(
        "POST",
        "/v1/companies/{company}/show-apps",
        commands.ShowApps,
        "Whether a company's users see each other's apps.",
    ),
    _do("POST", "/v1/accounts", commands.AddAccount, "Add an account."),
    _do("PATCH", "/v1/accounts/{account}", commands.ChangeAccount, "Change how an account is shown."),
    _do("DELETE", "/v1/accounts/{account}", commands.RemoveAccount, "Remove an account and its tokens."),
    _do("POST", "/v1/accounts/{account}/grant-role", commands.GrantRole, "Give an account a role."),
    _do("POST", "/v1/accounts/{account}/revoke-role", commands.RevokeRole, "Take a role from an account."),
    _do("POST", "/v1/tokens", commands.IssueToken, "Issue a token, of which only the hash is sent.", verb="tokens"),
    _do("DELETE", "/v1/tokens/{token}", commands.RevokeToken, "End a token.", verb="tokens"),
    _do("POST", "/v1/workers", commands.RegisterWorker, "Register a worker."),
    _do("POST", "/v1/workers/{worker}/drain", commands.DrainWorker, "Stop granting on a worker."),
    _do("POST", "/v1/workers/{worker}/undrain", commands.UndrainWorker, "Return a worker to service."),
    _do("POST", "/v1/workers/{worker}/decommission", commands.DecommissionWorker, "Retire a worker."),
    _do("POST", "/v1/workers/{worker}/remove", commands.RemoveWorker, "Remove a worker."),
    _do("POST", "/v1/windows", commands.AddWindow, "Add a window, in which nothing runs on some workers."),
    _do("DELETE", "/v1/windows/{window}", commands.RemoveWindow, "Remove a window, or end it now."),
    _work(
        f"{_OF_WORKER}/grants",
        "workerGrants",
        "What a worker holds, with the token of each grant; the question is a heartbeat.",
        tells="Holding",
    ),
    _work(
        f"{_OF_WORKER}/invited",
        "workerInvited",
        "Whether a worker could register so; its invitation may ask before it is exchanged.",
        "Registering",
        handler=lambda door: door.handlers.workers.check_invited,
    ),
    _work(
        f"{_OF_WORKER}/register",
        "workerRegister",
        "Register a worker and its agent.",
        "Registering",
        handler=lambda door: door.handlers.workers.register,
        pool="commands",
    ),
    _work(
        f"{_OF_WORKER}/leave",
        "workerLeave",
        "Remove a worker that its agent has drained.",
        handler=lambda door: door.handlers.workers.leave,
        pool="commands",
    ),
    _work(
        f"{_OF_WORKER}/removal",
        "workerRemoval",
        "Why the log removed the worker last.",
        tells="Removal",
        handler=lambda door: door.handlers.workers.removal,
    ),
    _work(
        f"{_OF_WORKER}/reports",
        "workerReports",
        "Report executors that have started or ended.",
        "Reports",
        handler=lambda door: door.handlers.workers.reports,
    ),
    _work(
        f"{_OF_EXECUTOR}/begin",
        "executorBegin",
        "Create the app's tasks; its secrets.",
        tells="Begun",
        handler=lambda door: door.handlers.workers.begin,
    ),
    _work(
        f"{_OF_EXECUTOR}/step",
        "executorStep",
        "Report ended tasks and take new ones.",
        "StepRequest",
        "Step",
        handler=lambda door: door.handlers.workers.step,
    ),
    _work(
        f"{_OF_EXECUTOR}/output",
        "executorOutput",
        "Keep the output of running tasks.",
        "OutputTails",
        "Kept",
        handler=lambda door: door.handlers.workers.output,
    ),
    _work(
        f"{_OF_EXECUTOR}/backlog",
        "executorBacklog",
        "Report the backlog of an elastic app.",
        "Backlog",
        handler=lambda door: door.handlers.workers.backlog,
    ),
    _work(
        f"{_OF_EXECUTOR}/end-app",
        "executorEndApp",
        "Report that the app's tasks have ended.",
        "AppEnd",
        handler=lambda door: door.handlers.workers.end_app,
    ),
    _work(
        f"{_OF_EXECUTOR}/alive",
        "executorAlive",
        "Show the executor to RQ's tools.",
        handler=lambda door: door.handlers.workers.alive,
    ),
    _work(
        f"{_OF_EXECUTOR}/visits",
        "executorVisits",
        "What to run in the executor's cell.",
        tells="Visited",
        handler=lambda door: door.handlers.workers.visits,
    ),
    _work(
        f"{_OF_EXECUTOR}/attend",
        "executorAttend",
        "Exchange input and output of it.",
        "Report",
        "Orders",
        handler=lambda door: door.handlers.workers.attend,
    ),
    _work(
        f"{_OF_EXECUTOR}/finish",
        "executorFinish",
        "Return the executor's tasks.",
        "Finish",
        handler=lambda door: door.handlers.workers.finish,
    ),
    _see(
        "apps",
        "The apps in order of submission.",
        many=True,
        more=(
            Param("everything", _FLAG, "Include ended apps."),
            Param("endedAfter", _SEQ, "Include apps that ended after this time (ms)."),
            Param("ids", _LIST, "Only the apps of these ids or numbers, separated by commas, as far as there are any."),
            Param("companies", _LIST, "Only the apps of these companies."),
            Param("users", _LIST, "Only the apps of these users."),
            Param("details", _FLAG, "Tell also what each app asks for, and where and since when it runs."),
            Param("tasks", _FLAG, "Tell also the states of its tasks, as `taskStates`."),
            _REASON,
        ),
        app_in="ids",
    ),
    _see("app", "An app with its executors.", more=(_REASON,)),
    Route(
        "GET",
        "/v1/apps/{app}/tasks",
        "tasks",
        "read",
        "The states of an app's tasks.",
        "list",
        params=(_FRESH, _CURSOR, _LIMIT),
        shows=answers.TaskShown,
        handler=lambda door: door.handlers.apps.tasks,
    ),
    Route(
        "GET",
        "/v1/apps/{app}/tasks/{task}/output",
        "output",
        "private",
        "The last 64 KiB of a task's output; if it is not the whole, its first line says so.",
        "output",
        params=(_STREAM, _REASON),
    ),
    Route(
        "GET",
        "/v1/apps/{app}/output",
        "outputs",
        "private",
        "The output of each task that has written any, in base64, and which bytes of it come from stderr.",
        "list",
        params=(_TASK, _CURSOR, _LIMIT, _REASON),
        shows=answers.OutputShown,
        handler=lambda door: door.handlers.apps.outputs,
    ),
    Route(
        "GET",
        "/v1/apps/{app}/driver/output",
        "driverOutput",
        "private",
        "The last 64 KiB of the driver's output; if it is not the whole, its first line says so.",
        "output",
        params=(_STREAM, _REASON),
    ),
    Route(
        "GET",
        "/v1/runs",
        "runs",
        "submit",
        "What the last apps of a user used that had this name and have ended.",
        "value",
        params=(
            Param("company", _NAMED, "The company of the user.", required=True),
            Param("user", _NAMED, "The user.", required=True),
            Param("name", _NAMED, "The name of the apps.", required=True),
            _FRESH,
        ),
        shows=answers.PastRuns,
        handler=lambda door: door.board.runs,
    ),
    Route(
        "GET",
        "/v1/apps/{app}/explain",
        "explain",
        "read",
        "Why an app waits, or was placed as it was.",
        "value",
        params=(_FRESH, Param("audited", _FLAG, "Tell also what an audit says of the log, as `verdict`.")),
        shows=answers.Explanation,
        handler=lambda door: door.handlers.log.explain,
        long=True,
    ),
    _follow("/v1/apps/{app}/events", "appEvents", "read", "The events of an app as they are committed."),
    _see(
        "workers",
        "The workers by id.",
        many=True,
        more=(Param("lost", _FLAG, "Include lost workers that are still remembered."),),
    ),
    _see(
        "accounts",
        "The accounts that the caller manages, and its own.",
        many=True,
        more=(Param("company", _NAMED, "Only those of this company."),),
    ),
    _see(
        "tokens",
        "The valid tokens that the caller manages, without their hashes.",
        many=True,
        more=(Param("account", _NAMED, "Only those of this account."),),
    ),
    _see("resources", "The kinds of resources.", many=True),
    _see("companies", "The companies and their quotas.", many=True),
    _follow("/v1/companies/{company}/events", "companyEvents", "cluster-read", "The events of a company's apps."),
    _see("shares", "What companies and users hold."),
    Route(
        "GET",
        "/v1/companies/{company}/statement",
        "statement",
        "statement",
        "A company's use in a month, by user and app.",
        "value",
        params=(_MONTH, _FRESH),
        shows=answers.Statement,
        handler=lambda door: door.handlers.log.statement,
        long=True,
    ),
    Route(
        "GET",
        "/v1/statement",
        "departmentsStatement",
        "statement",
        "The use of a department, or of the cluster, in a month.",
        "value",
        params=(
            _MONTH,
            Param("department", _NAMED, "Only what was in this department."),
            Param(
                "by",
                {"type": "string", "enum": ["department", "company", "user"]},
                "What the lowest rows are about.",
            ),
            _FRESH,
        ),
        shows=answers.DepartmentsStatement,
        handler=lambda door: door.handlers.log.departments_statement,
        long=True,
    ),
    Route(
        "GET",
        "/v1/fairness",
        "fairness",
        "cluster-read",
        "How fair the log was to companies, users or departments.",
        "value",
        params=(
            Param(
                "by",
                {"type": "string", "enum": ["company", "user", "department"]},
                "Figures of companies, users or departments.",
            ),
            Param("at", _SEQ, "Up to this log position."),
            AFTER,
            _FRESH,
        ),
        shows=answers.FairnessFigures,
        handler=lambda door: door.board.fairness,
        long=True,
    ),
    Route(
        "POST",
        "/v1/whatif",
        "whatif",
        "cluster-read",
        "The log's inputs under other rules beside the log; nothing is changed.",
        "value",
        params=(Param("at", _SEQ, "Up to this log position."),),
        asks=OtherRules,
        shows=answers.Compared,
        handler=lambda door: door.handlers.log.whatif,
        long=True,
    ),
    Route(
        "POST",
        "/v1/plan",
        "plan",
        "submit",
        "What would become of a submission now, and why; nothing is changed.",
        "value",
        params=(_FRESH,),
        asks=commands.SubmitApp,
        shows=answers.PlanTold,
        handler=lambda door: door.handlers.log.plan,
        long=True,
    ),
    Route(
        "GET",
        "/v1/estimates",
        "estimates",
        "read",
        "When apps that wait may start, and how far earlier estimates were from what came.",
        "value",
        params=(
            Param("ids", _LIST, "Only apps of these ids or numbers, separated by commas, as far as they wait."),
            _AT,
            _FRESH,
        ),
        shows=answers.Estimates,
        handler=lambda door: door.handlers.log.estimates,
        long=True,
    ),
    Route(
        "GET",
        "/v1/audit",
        "audit",
        "cluster-read",
        "The verdicts of an audit of the whole log.",
        "value",
        shows=answers.AuditResult,
        handler=lambda door: door.handlers.log.audit,
        long=True,
    ),
    _see("limits", "The limits.", many=True),
    _see("departments", "The departments, what they hold and are entitled to, from the top down.", many=True),
    _see("windows", "The windows that are not over, the first to begin first.", many=True),
    _see("settings", "The settings in force."),
    _see("edition", "The edition of the rules of sharing in force."),
    _see(
        "demand", "What ready apps ask for and are not granted, by size: what further workers would be for.", many=True
    ),
    _see("cluster", "The head of the log, the capacity and the number of apps."),
    Route(
        "GET",
        "/v1/log",
        "log",
        "cluster-read",
        "Events of the log.",
        "list",
        params=(_FROM, _FRESH, _LIMIT, _REASON),
        shows=answers.LogEvent,
        handler=lambda door: door.handlers.log.entries,
        pool="views",
    ),
    _follow("/v1/log/events", "logEvents", "cluster-read", "The events of the log as they are committed."),
    Route(
        "POST",
        "/v1/audit",
        "auditFile",
        "cluster-read",
        "The verdicts of an audit of a log in the body.",
        "value",
        shows=answers.AuditResult,
        handler=lambda door: door.board.audit_file,
        long=True,
    ),
    Route("GET", "/v1/session", "session", "", "Who looks at the page.", "session", shows=answers.PageSession),
    Route(
        "POST",
        "/v1/session",
        "logIn",
        "",
        "Exchange a token or a link for a session.",
        "session",
        shows=answers.PageSession,
    ),
    Route("DELETE", "/v1/session", "logOut", "", "End the session.", "session", shows=answers.Nothing),
    Route("POST", "/v1/passes", "pass", "submit", "A pass for the driver of an app.", "pass", asks=OfDriver, shows=str),
    Route(
        "POST",
        "/v1/links",
        "link",
        "",
        "A link that opens one session of the caller.",
        "session",
        shows=answers.PageLink,
    ),
    Route("GET", "/v1/pulse", "pulse", "cluster-read", "What has changed, at most once a second.", "events"),
    _show(
        "/v1/overview",
        "overview",
        "The cluster at a glance.",
        answers.Overview,
        AFTER,
        handler=lambda door: door.board.overview,
    ),
    _show(
        "/v1/course",
        "course",
        "The cores in use and the apps pending in the last hour.",
        answers.CourseOfHour,
        handler=lambda door: door.board.course,
    ),
    _show(
        "/v1/board",
        "board",
        "The apps that pass, sorted, with what they wait for.",
        answers.BoardPage,
        AFTER,
        _COMPANY,
        _USER,
        Param("state", {"type": "string", "enum": [*STATES]}, "In which state; without it, those that have not ended."),
        Param("reason", {"type": "string", "enum": [*CAUSES]}, "Only those that wait for this cause."),
        Param("text", _NAMED, "Only those with this in their id."),
        Param("sort", {"type": "string", "enum": [*SORTS]}, "By what they are sorted."),
        Param("descending", _FLAG, "The largest first."),
        Param("start", {"type": "integer", "minimum": 0, "maximum": 10**6}, "The number of the first one, from 0."),
        _MOST,
        verb="read",
        handler=lambda door: door.board.apps,
    ),
    _show(
        "/v1/apps/{app}/card",
        "card",
        "An app, why it waits and what would help.",
        answers.AppCard,
        AFTER,
        _REASON,
        verb="read",
        handler=lambda door: door.board.app,
    ),
    _show(
        "/v1/apps/{app}/timeline",
        "timeline",
        "The life of an app.",
        answers.TimelineShown,
        verb="read",
        handler=lambda door: door.board.timeline,
        long=True,
    ),
    _show(
        "/v1/companies/{company}/card",
        "companyCard",
        "What a company holds, is due and waits for.",
        answers.CompanyCard,
        AFTER,
        handler=lambda door: door.board.company,
    ),
    _show(
        "/v1/fleet",
        "fleet",
        "The workers with what runs on them.",
        answers.FleetShown,
        AFTER,
        handler=lambda door: door.board.fleet,
    ),
    _show(
        "/v1/history",
        "history",
        "Who changed settings, companies, accounts and workers.",
        answers.ChangeList,
        _MOST,
        handler=lambda door: door.board.history,
    ),
    _show(
        "/v1/entries",
        "entries",
        "Events of the log, the newest first.",
        answers.Entries,
        Param("before", _SEQ, "Events before this log position."),
        _COMPANY,
        _APP,
        Param("kind", {**_NAMED, "maxLength": 400}, "Only events of this type, or of these, separated by commas."),
        _MOST,
        handler=lambda door: door.board.entries,
    ),
    Route(
        "GET",
        "/v1/entries/{position}",
        "decision",
        "cluster-read",
        "An event of the log, and the candidates that there were.",
        "value",
        params=(AFTER, _SEEN),
        shows=answers.DecisionCard,
        handler=lambda door: door.board.decision,
    ),
    Route(
        "GET",
        "/v1/moment",
        "moment",
        "cluster-read",
        "The last turn at or before a time.",
        "value",
        params=(Param("time", _SEQ, "In ms.", required=True), _SEEN),
        shows=answers.Instant,
        handler=lambda door: door.board.moment,
    ),
)
