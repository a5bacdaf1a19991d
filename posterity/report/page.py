"""The pages: of runs, and of what left a site across machines. Templates of the package place what is gathered here.

`table.py` and `sections.py` make tables, `findings.py` sentences, `charts.py` drawings. A template is filled with its
style sheet and its one script; everything else is escaped.
"""

import base64
import hashlib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from jinja2 import Environment, PackageLoader, StrictUndefined, select_autoescape

from posterity.evaluate.metrics import TERMS
from posterity.report import charts, findings, sections, table
from posterity.report.findings import headline
from posterity.report.svg import colour
from posterity.report.table import PART, RULES, columns, goal, human_bytes
from posterity.runs.files import write_atomic
from posterity.runs.read import ReportError, Run, load_runs

SINGLE = 2000  # lines that are shown one by one
Line = Mapping[str, Any]


def write_sent_page(out: Path, client: str, experiment: str, lines: Sequence[Line], leaves: Sequence[Line]) -> None:
    """The page of a client in an experiment: every line, and what they come to for each leaf."""
    size = sum(int(line["bytes"]) for line in lines)
    counts = [int(line["count"]) for line in lines if line["count"]]  # 0: nothing was told
    rounds = sorted({int(line["round"]) for line in lines})
    least = f"; nothing of it is made of fewer than {min(counts)} samples" if counts else ""
    text = fill_template(
        "sent.html",
        title=f"What left {client}",
        finding=f"{human_bytes(size)} left this site in {len(rounds)} rounds, registration included{least}, as far as "
        "samples are behind it and are known.",
        facts=[
            ("client", client),
            ("experiment", experiment),
            ("rounds", " … ".join(map(str, rounds[:1] + rounds[-1:]))),
            ("leaves", len(leaves)),
            ("bytes", f"{size:,}"),
        ],
        leaves=leaves,
        lines=lines[-SINGLE:],
        total=len(lines),
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
    """The page as text; its template asks the other files of this room for what it places."""
    rows = headline(runs, show)
    further = findings.further(rows)
    facts = {
        "rows": rows,
        "columns": columns(rows),
        "further": further,
        "further_columns": columns(further, "further"),
        "comparison": findings.main_comparison(rows),
        "runs": runs,
        "federation": runs[0].federation,
        "goal": goal(rows[0].arm.runs[0]),
        "rule": show,
        "rules": RULES,
        "part": PART[show],
        "terms": TERMS,
    }
    tools = {"charts": charts, "findings": findings, "sections": sections, "table": table, "colour": colour}
    return fill_template("page.html", **facts, **tools)
