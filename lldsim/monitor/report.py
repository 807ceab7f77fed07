"""A one-page report of a diagnosis: HTML that stands alone (the picture is inside), and the picture beside it.

Everything that comes from a log is escaped; the page holds no script and loads nothing.
What this file does not do: draw; it is handed the PNG's bytes.
"""

from __future__ import annotations

import base64
import html
import re
from collections.abc import Callable, Iterable
from pathlib import Path

from lldsim.monitor.diagnose import Diagnosis

WORD = {True: "yes", False: "no", None: "cannot be told"}
# In the order of notebooks/10_monitor.ipynb, which tries each from the first alarm on.
ADVICE = (
    "Stop, and keep the last checkpoint from before the first alarm.",
    "From there, take the ratio to the policy that sampled (its own log-probabilities), if sampler and trainer differ.",
    "Or weigh wrong responses (A < 0) by a quarter.",
    "Or go back further and add LLDS (lambda .2, action gate) from the start: added at the alarm it mostly delays.",
    "A smaller learning rate only delays; moving the sampler to temperature 1 in a sick run is no cure.",
    "Log the likelihood of correct responses, if it was inferred from symptoms here.",
)


def write_report(
    result: Diagnosis, folder: Path, *, draw: Callable[[Diagnosis], bytes] | None = None, index: int = 1
) -> Path:
    """Write `NN_name.html` (and `.png` with `draw`) into `folder`, creating it, and return the HTML's path."""
    folder.mkdir(parents=True, exist_ok=True)
    stem = f"{index:02d}_" + (re.sub(r"[^A-Za-z0-9_-]+", "_", Path(result.path).stem)[:60] or "run")
    picture = None if draw is None else draw(result)
    if picture is not None:
        (folder / f"{stem}.png").write_bytes(picture)
    target = folder / f"{stem}.html"
    target.write_text(page(result, picture), encoding="utf-8")
    return target


def page(result: Diagnosis, picture: bytes | None = None) -> str:
    """Return the report as HTML text."""
    log, esc = result.log, html.escape
    image = "" if picture is None else base64.b64encode(picture).decode()
    alarms = [(f"{a.step:g}", a.rule, a.severity, a.message) for a in result.alarms]
    phases = [(p["phase"], f"{p['from']:g}", f"{p['low']:g} to {p['high']:g}") for p in result.phases]
    conditions = [
        (name, WORD[c["holds"]], "" if c["from"] is None else f"{c['from']:g}") for name, c in result.conditions.items()
    ]
    parts = [
        "<!doctype html><html lang='en'><meta charset='utf-8'>",
        "<meta http-equiv='Content-Security-Policy' "
        "content=\"default-src 'none'; img-src data:; style-src 'unsafe-inline'\">",
        f"<title>LLD report: {esc(Path(result.path).name)}</title>",
        "<style>body{font:15px/1.5 sans-serif;max-width:60em;margin:2em auto;padding:0 1em}"
        "table{border-collapse:collapse}"
        "td,th{padding:.2em .7em;border-bottom:1px solid #ddd;text-align:left}img{max-width:100%}</style>",
        f"<h1>{esc(result.verdict)}</h1><p>{esc(result.why)}</p>",
        f"<p>{esc(result.path)} &middot; {esc(log.format)} &middot; {len(log.record)} rows"
        f" &middot; <em>{log.record.label}</em> &middot; data {esc(log.record.config_hash)}</p>",
        f"<img alt='signals over steps with alarms and phases' src='data:image/png;base64,{image}'>" if image else "",
        _table("Alarms", ("step", "rule", "severity", "what"), alarms),
        _table("Phases", ("phase", "from", "95 %"), phases),
        _table("Conditions of Def. A.3", ("condition", "holds", "from step"), conditions),
        _table("Not in the log", ("signal", "rules out"), result.missing.items()),
        _list("Notes", log.notes + ([f"released likelihood metric: {result.trap}"] if result.trap != "no" else [])),
        _list("What to try, in this order", ADVICE) if result.decays else "",
        _list("Keys that were not read", log.unknown_keys[:60]),
        "</html>",
    ]  # fmt: skip
    return "\n".join(part for part in parts if part) + "\n"


def _table(title: str, head: tuple[str, ...], rows: Iterable[Iterable[str]]) -> str:
    body = "".join("<tr>" + "".join(f"<td>{html.escape(str(cell))}</td>" for cell in row) + "</tr>" for row in rows)
    if not body:
        return f"<h2>{title}</h2><p>none</p>"
    return f"<h2>{title}</h2><table><tr>" + "".join(f"<th>{h}</th>" for h in head) + f"</tr>{body}</table>"


def _list(title: str, items: Iterable[str]) -> str:
    body = "".join(f"<li>{html.escape(item)}</li>" for item in items)
    return f"<h2>{title}</h2><ul>{body}</ul>" if body else ""
