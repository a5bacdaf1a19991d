"""One self-contained HTML page for a run or a comparison of runs, and the same table for the terminal.

Files (`packing`) become runs, a rule selects a round of each, methods become rows (`table`), are compared and put into
words (`findings`), listed in smaller tables and client by client (`sections`), drawn (`charts`, by `svg`) and placed
(`page`, by its template). What left a site across machines has a page of its own. Nothing here computes a metric: that
is `evaluate`.
"""

from posterity.report import findings as verdict
from posterity.report.findings import Comparison, complete, finding, headline, main_comparison
from posterity.report.packing import pack_runs
from posterity.report.page import write_report, write_sent_page
from posterity.report.table import RULES, Cell, Column, Row, check_rule, columns
from posterity.runs.read import ReportError, Run, load_runs

__all__ = [
    "RULES",
    "Cell",
    "Column",
    "Comparison",
    "ReportError",
    "Row",
    "Run",
    "check_rule",
    "columns",
    "complete",
    "finding",
    "headline",
    "load_runs",
    "main_comparison",
    "pack_runs",
    "verdict",
    "write_report",
    "write_sent_page",
]
