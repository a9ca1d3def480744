"""How API servers, tokens, views and apps are named to their clients."""

from urllib.parse import quote

from scheduler.model.errors import UnknownApp
from scheduler.service.addresses import TOKEN_FILE_VARIABLE, TOKEN_VARIABLE, UNIX, URL_VARIABLE

__all__ = [
    "SPARK_REST_VARIABLE",
    "TOKEN_FILE_VARIABLE",
    "TOKEN_VARIABLE",
    "UNIX",
    "URL_VARIABLE",
    "VIEWS",
    "check_app",
    "of_app",
]

SPARK_REST_VARIABLE = "FAIRLOG_SPARK_REST"
"""Where an API server listens for Spark's clients, HOST:PORT."""
VIEWS = {
    "apps": "/v1/apps",
    "app": "/v1/apps/{app}",
    "workers": "/v1/workers",
    "accounts": "/v1/accounts",
    "tokens": "/v1/tokens",
    "resources": "/v1/resources",
    "companies": "/v1/companies",
    "shares": "/v1/shares",
    "limits": "/v1/limits",
    "windows": "/v1/windows",
    "departments": "/v1/departments",
    "settings": "/v1/settings",
    "edition": "/v1/edition",
    "cluster": "/v1/cluster",
    "estimates": "/v1/estimates",
    "demand": "/v1/demand",
}
"""View (`scheduler.rules.view.views`) -> the path at which it is asked for."""


def check_app(app: str) -> None:
    """Raises: UnknownApp for a text that no app can be named, and that could name something else in a path."""
    if not app or "/" in app or app in (".", ".."):
        raise UnknownApp(app[:80])


def of_app(app: str) -> str:
    """The path of the app. Raises: UnknownApp, as `check_app`."""
    check_app(app)
    return f"/v1/apps/{quote(app, safe='')}"
