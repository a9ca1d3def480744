"""The fairness report as one HTML page that needs no network: the live page's own charts, and a table."""

from __future__ import annotations

import json
import re
from base64 import b64encode
from collections.abc import Sequence
from html import escape
from typing import Any

from fairlog.cli import render
from fairlog.page.assets import FOLDER
from scheduler.model.text import one_line

_IMPORTED = re.compile(r'"/page/(\w+\.js)"')
_NEEDED = tuple(f"page/{name}.js" for name in ("dom", "core", "charts", "parts", "fairness", "report"))
_POLICY = "default-src 'none'; style-src 'unsafe-inline'; script-src 'unsafe-inline' data:"
_PAGE = """<!DOCTYPE html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta name="color-scheme" content="light dark">
<meta http-equiv="Content-Security-Policy" content="{policy}">
<title>Fairness</title>
<style>
{style}
</style>
<script type="importmap">{modules}</script>
</head>
<body>
<main>
<div id="drawn"><h1>Fairness</h1></div>
<h2>Figures</h2>
<p class="faint">{about}</p>
<div class="scroll">{table}</div>
</main>
<script type="application/json" id="figures">{figures}</script>
<script type="module">import "page/report.js";</script>
</body>
</html>
"""


def _text(text: str) -> str:
    return escape(one_line(text))


def page(report: dict[str, Any], waits: Sequence[dict[str, Any]]) -> str:
    """The page for a report of `witness.fairness` and the waits of the apps."""
    log, whole = report["log"], report["cluster"]
    about = (
        f"Log entries {log['from']} to {log['to']}, {render.moment(log['fromAt'])} to {render.moment(log['toAt'])}"
        f", digest {log['digest']}. Jain's index {whole['jain']}, fairness error {whole['fairnessError']} of the "
        f"cluster, {whole['utilisation']} of the cores used, shortfall {whole['shortfallCoreS']} core-seconds."
    )
    return _PAGE.format(
        policy=_POLICY,
        style=(FOLDER / "style.css").read_text(encoding="utf-8"),
        modules=_json({"imports": _modules()}),
        about=_text(about),
        table=_table(report),
        figures=_json({"report": report, "waits": waits}),
    )


def _table(report: dict[str, Any]) -> str:
    columns = (
        ("demand", "demandCores"),
        ("entitled", "entitledCores"),
        ("granted", "grantedCores"),
        ("short, core-s", "shortfallCoreS"),
        ("out of turn", "longestOutOfTurnMs"),
        ("apps", "apps"),
        ("wait p50", "waitP50Ms"),
        ("p90", "waitP90Ms"),
        ("p99", "waitP99Ms"),
        ("longest", "waitLongestMs"),
    )
    head = "".join(f"<th>{name}</th>" for name in ("who", *(name for name, _ in columns)))
    lines = []
    for row in report["rows"]:
        cells = [" ".join(filter(None, (row["company"], row.get("user"), row.get("department"))))]
        cells += [render.duration(row[key]) if key.endswith("Ms") else str(row[key]) for _, key in columns]
        lines.append("<tr>" + "".join(f"<td>{_text(cell)}</td>" for cell in cells) + "</tr>")
    return f"<table><tr>{head}</tr>{''.join(lines)}</table>"


def _modules() -> dict[str, str]:
    """The scripts by the names that they import each other by, as URLs that hold them: the file needs no server."""
    said = {}
    for file in sorted(FOLDER.glob("*.js")):
        text = _IMPORTED.sub(r'"page/\1"', file.read_text(encoding="utf-8"))
        said[f"page/{file.name}"] = f"data:text/javascript;base64,{b64encode(text.encode()).decode()}"
    return {name: said[name] for name in _NEEDED}


def _json(value: object) -> str:
    """JSON that cannot end the script element which holds it."""
    return json.dumps(value, separators=(",", ":")).replace("<", "\\u003c")
