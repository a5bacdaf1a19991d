"""The pages: of runs, and of what left a site across machines. Templates of the package place what is gathered here.

`table.py` and `sections.py` make tables, `findings.py` sentences, `charts.py` drawings. A template is filled with its
style sheet and its one script; everything else is escaped.
"""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from jinja2 import Environment, PackageLoader, StrictUndefined, select_autoescape

from posterity.evaluate.metrics import TERMS
from posterity.report import charts, findings, sections
from posterity.report.findings import Comparison, headline
from posterity.report.svg import colour
from posterity.report.table import PART, RULES, Row, axis_title, columns, goal, human_bytes, user_metrics
from posterity.runs.files import write_atomic
from posterity.runs.read import FederationFacts, ReportError, Run, load_runs

SINGLE = 2000  # lines that are shown one by one
Line = Mapping[str, Any]


def write_sent_page(out: Path, client: str, experiment: str, lines: Sequence[Line], leaves: Sequence[Line]) -> None:
    """The page of a client in an experiment: every line, and what they come to for each leaf."""
    size = sum(int(line["bytes"]) for line in lines)
    counts = [int(line["count"]) for line in lines if line["count"]]  # 0: nothing was told
    rounds = sorted({int(line["round"]) for line in lines})
    least = f"; nothing of it is made of fewer than {min(counts)} samples" if counts else ""
    facts = {
        "client": client,
        "experiment": experiment,
        "rounds": f"{rounds[0]} … {rounds[-1]}" if rounds else "none",
        "leaves": str(len(leaves)),
        "bytes": f"{size:,}",
    }
    text = fill_template(
        "sent.html",
        title=f"What left {client}",
        finding=f"{human_bytes(size)} left this site in {len(rounds)} rounds, registration included{least}, as far as "
        "samples are behind it and are known.",
        facts=list(facts.items()),
        leaves=leaves,
        lines=lines[-SINGLE:],
        total=len(lines),
        cut=len(lines) > SINGLE,
    )
    write_atomic(out, text.encode(errors="replace"))


UNSEEN = dict.fromkeys((*range(9), *range(11, 32), 127, *range(0x202A, 0x202F), *range(0x2066, 0x206A)), "\ufffd")
"""Characters that a reader does not see and that reorder or end what stands around them: a label may hold any."""


def fill_template(name: str, **values: Any) -> str:
    """The page that a template makes of `values`, as text."""
    environment = Environment(
        loader=PackageLoader("posterity.report", "."),
        autoescape=select_autoescape(default=True),
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    css, script = (environment.get_template(each).render() for each in ("page.css", "page.js"))
    text = environment.get_template(name).render(css=css, script=script, policy=_policy(css, script), **values)
    return text.translate(UNSEEN)


def _policy(css: str, script: str) -> str:
    """Nothing is fetched, and no script or style but the page's own is obeyed, whatever a label may hold."""
    digests = [base64.b64encode(hashlib.sha256(text.encode()).digest()).decode() for text in (script, css)]
    policy = "default-src 'none'; script-src 'sha256-{}'; style-src 'sha256-{}'; base-uri 'none'; form-action 'none'"
    return policy.format(*digests)


def write_report(folder: Path, out: Path | None = None, show: str = "validated") -> Path:
    """Write the page for the runs in a folder, or a file of packed runs, at once or not at all; say where it is."""
    folder = Path(folder)
    beside = folder.with_name(folder.name.partition(".")[0] + ".html") if folder.is_file() else folder / "report.html"
    out = Path(out) if out is not None else beside
    text = render(load_runs(folder), show)
    try:
        write_atomic(out, text.encode(errors="replace"))
    except OSError as error:
        raise ReportError(
            f"The page cannot be written to {out} ({error.strerror or error}). The runs were only read; name a place "
            f"that can be written: posterity report {folder} --out page.html"
        ) from error
    return out


def render(runs: Sequence[Run], show: str = "validated") -> str:
    """The page as text."""
    return fill_template("page.html", colour=colour, axis_title=axis_title, **contents(runs, show))


def contents(runs: Sequence[Run], show: str) -> dict[str, Any]:
    """What the page says, by name."""
    rows = headline(runs, show)
    more, comparison = findings.further(rows), findings.main_comparison(rows)
    return {
        "title": _title(rows),
        "finding": findings.describe(comparison, rows),
        "facts": _facts(runs, rows),
        "cautions": sections.cautions(runs, rows),
        "rows": rows,
        "columns": columns(rows),
        "goal": goal(rows[0].arm.runs[0]),
        "terms": _terms(runs, rows),
        "rule": show,
        "rules": RULES,
        "part": PART[show],
        "part_words": "held-out part" if PART[show] == "held" else f"{PART[show]} half",
        "described": sections.described(rows),
        "run_notes": sections.run_notes(rows),
        "client_tables_of": _client_tables(rows),
        "several": max(row.seeds for row in rows) > 1,
        "by_rule": sections.by_rule(rows),
        "by_point": sections.by_point(rows),
        "common": sections.by_point(rows, "common"),
        "outside": sections.outside(rows),
        "further": more,
        "further_columns": columns(more, "further"),
        "newcomers": sections.newcomers(rows),
        "troubles": sections.troubles([row.arm for row in rows]),
        "sparks": charts.sparks([row.arm for row in rows]),
        "every_run": sections.every_run(rows),
        "runs": runs,
        "references": {run.label: run.reference for run in runs if run.reference},
        "federation": runs[0].federation,
        "notes": sorted(sections.data_notes(runs)),
        "worst_note": findings.worst_note(rows),
        **_figures(rows, runs[0].federation, show),
        **_pairs(comparison, show),
    }


def _terms(runs: Sequence[Run], rows: Sequence[Row]) -> list[tuple[str, str]]:
    """What the metrics mean: those of the package, and those of the users that say it."""
    own = [
        (str(m.get("label") or name), str(m["meaning"])) for name, m in user_metrics(runs).items() if m.get("meaning")
    ]
    positive = sections.positive_class(rows[0].arm.runs[0])
    two = [("positive class", f"{positive}.")] if positive else []
    return [*TERMS[goal(rows[0].arm.runs[0]).task or "classification"].items(), *two, *own]


def _figures(rows: Sequence[Row], federation: FederationFacts, show: str) -> dict[str, Any]:
    """Drawings; empty where there is nothing to draw."""
    lines = charts.learning_curves(sorted((row.arm for row in rows), key=lambda a: a.index), PART[show])
    paid = charts.by_traffic(lines)
    dots = [(row.arm, found) for row in rows if (found := charts.client_dots(row.arm, show))]
    pooled = [(row, charts.pooled_bins(row.arm, show)) for row in rows]
    return {
        "curves": lines and charts.line_chart(lines, charts.WIDTH, "Headline metric by round"),
        "traffic": paid and charts.line_chart(paid, charts.WIDTH, "Headline metric by bytes sent", "sent so far"),
        "strip": dots and charts.strip_chart(dots),
        "dots_cut": any(len(found) > charts.MOST_DOTS for _, found in dots),
        "reliability": [(row.arm, charts.reliability(row.arm, bins, row.seeds)) for row, bins in pooled if bins],
        "partition": federation.train and charts.partition(federation),
        "counted": _counted(federation),
        "limits": {
            "dots": charts.MOST_DOTS,
            "clients": charts.CLIENTS,
            "classes": charts.CLASSES,
            "methods": charts.SHOWN,
        },
    }


def _client_tables(rows: Sequence[Row]) -> dict[str, Any]:
    """Every client under every method, and every newcomer where there are some; what must be said about each."""
    first = rows[0].arm.runs[0]
    column = findings.goal_column(first)
    members = sections.client_tables(rows, lambda run, selected: selected.score)
    newcomers = sections.client_tables(
        rows, lambda run, _: sections.longest_adapted(run, rows[0].rule), first.federation.members
    )
    return {
        "members": members[: sections.TABLES],
        "members_said": sections.describe_tables(members, column),
        "leading": sections.leading(members[: sections.TABLES]),
        "newcomers": newcomers[: sections.TABLES],
        "newcomers_said": sections.describe_tables(newcomers, column),
    }


def _pairs(comparison: Comparison, show: str) -> dict[str, Any]:
    """The section on differences; empty where nothing could be tested."""
    tested = comparison.tested
    return {
        "comparison": comparison,
        "untested": findings.untested(comparison),
        "pairs": findings.lines(comparison, comparison.listed) if tested else [],
        "explained": findings.explained(comparison, show) if tested else [],
        "reach": findings.reach(comparison),
        "critical": charts.critical_chart(comparison) if tested else "",
    }


def _title(rows: Sequence[Row]) -> str:
    name = rows[0].arm.runs[0].federation.name
    return f"{rows[0].label} on {name}" if len(rows) == 1 else f"{len(rows)} methods on {name}"


def _facts(runs: Sequence[Run], rows: Sequence[Row]) -> list[tuple[str, str]]:
    """What was run, in a line."""
    fed, first = runs[0].federation, runs[0]
    clients = f"{fed.clients}" + (f" ({fed.members} members, {fed.newcomers} newcomers)" if fed.newcomers else "")
    seeds = sorted({run.seed for run in runs if run.seed is not None})
    samples = sum(fed.train) + sum(fed.validation) + sum(fed.test)
    facts = [
        ("data", fed.name),
        ("partition", str(first.config.get("partition", ""))),
        ("clients", clients),
        ("classes", str(fed.classes) if fed.classes and fed.task != "regression" else ""),
        ("samples", f"{samples:,}" if samples else ""),
        ("model", str(first.config.get("model", ""))),
        ("rounds", str(first.planned or first.reached)),
        ("participation", str(first.config.get("participation", ""))),
        ("seeds", ", ".join(map(str, seeds))),
        ("methods", str(len(rows)) if len(rows) > 1 else ""),
        ("runs", str(len(runs))),
    ]
    return [(name, value) for name, value in facts if value]


def _counted(federation: FederationFacts) -> str:
    """Which samples the bubbles count: the log does not say, but the sums do."""
    sums = [sum(row) for row in federation.histogram]
    parts = (federation.train, federation.validation, federation.test)
    if sums == list(federation.train):
        return "training samples"
    return "samples" if sums != [sum(p) for p in zip(*parts, strict=False)] else "samples, held-out ones included"
