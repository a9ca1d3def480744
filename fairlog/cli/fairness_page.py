"""The fairness report as one HTML page that needs no network: interactive charts and a table."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime
from html import escape
from itertools import cycle
from typing import Any

from fairlog.cli import render
from scheduler.model.text import one_line

_CONFIG = {"displaylogo": False, "modeBarButtonsToRemove": ["sendChartToCloud"]}
"""Without the button that sends the chart to a server."""
_PAGE = """<!DOCTYPE html>
<html lang="en">
<head>
<meta charset="utf-8">
<title>Fairness</title>
<style>
body {{ font: 15px/1.5 system-ui, sans-serif; max-width: 1100px; margin: 2em auto; padding: 0 1em }}
body {{ color: #222; background: #fff }}
table {{ border-collapse: collapse; font-variant-numeric: tabular-nums }}
th, td {{ padding: .2em .8em; text-align: right; border-bottom: 1px solid #ddd }}
th:first-child, td:first-child {{ text-align: left }}
p {{ color: #555 }}
</style>
</head>
<body>
<h1>Fairness</h1>
<p>{about}</p>
{table}
{charts}
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
    return _PAGE.format(about=_text(about), table=_table(report), charts=_charts(report, waits))


def _table(report: dict[str, Any]) -> str:
    columns = (
        ("demand", "demandCores"),
        ("entitled", "entitledCores"),
        ("occupied", "occupiedCores"),
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
        cells = [" ".join(filter(None, (row["company"], row.get("user"))))]
        cells += [render.duration(row[key]) if key.endswith("Ms") else str(row[key]) for _, key in columns]
        lines.append("<tr>" + "".join(f"<td>{_text(cell)}</td>" for cell in cells) + "</tr>")
    return f"<table><tr>{head}</tr>{''.join(lines)}</table>"


def _charts(report: dict[str, Any], waits: Sequence[dict[str, Any]]) -> str:
    from plotly.colors import qualitative  # noqa: PLC0415 (takes a second, and is an extra)
    from plotly.graph_objects import Figure, Scatter  # noqa: PLC0415 (likewise)

    series = report["series"]
    parties = sorted({party for point in series for party in point["shares"]})
    times = [_time(point["at"]) for point in series]
    colours = dict(zip(parties, cycle(qualitative.D3), strict=False))
    shares = Figure()
    for party in parties:
        for name, dash in (("occupied", "solid"), ("entitled", "dash"), ("granted", "dot"), ("demand", "dashdot")):
            shares.add_trace(
                Scatter(
                    x=times,
                    y=[point["shares"].get(party, {}).get(name, 0) for point in series],
                    name=f"{_text(party)} {name}",
                    legendgroup=_text(party),
                    line={"color": colours[party], "dash": dash, "shape": "hv"},
                    visible=True if name in {"occupied", "entitled"} else "legendonly",
                )
            )
    shares.update_layout(title="Cores over time", yaxis_title="cores", hovermode="x unified")
    queue = Figure(Scatter(x=times, y=[point["queueLength"] for point in series], name="pending", line={"shape": "hv"}))
    queue.update_layout(title="Apps pending", yaxis_title="apps", hovermode="x unified")
    waited = Figure()
    for company in dict.fromkeys(wait["company"] for wait in waits):
        own = [wait for wait in waits if wait["company"] == company]
        waited.add_trace(
            Scatter(
                x=[_time(wait["at"]) for wait in own],
                y=[wait["waitMs"] / 1000 for wait in own],
                text=[f"{_text(wait['app'])}, {_text(wait['user'])}" for wait in own],
                name=_text(company),
                mode="markers",
                marker={"color": colours.get(company)},
            )
        )
    waited.update_layout(title="Waits by time of admission", yaxis_title="seconds")
    drawn = []
    for number, (name, figure) in enumerate((("shares", shares), ("queue", queue), ("waits", waited))):
        figure.update_layout(template="plotly_white", height=420)
        drawn.append(figure.to_html(full_html=False, include_plotlyjs=not number, div_id=name, config=_CONFIG))
    return "\n".join(drawn)


def _time(at_ms: int) -> str:
    return datetime.fromtimestamp(at_ms / 1000, UTC).isoformat(timespec="milliseconds").removesuffix("+00:00")
