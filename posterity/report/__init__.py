"""One self-contained HTML page for a run or a comparison of runs, and the same table for the terminal."""

from posterity.report import verdict
from posterity.report.columns import Column
from posterity.report.logs import ReportError
from posterity.report.packing import pack_runs
from posterity.report.page import write_report
from posterity.report.ranking import Contest, headline
from posterity.report.read_runs import Run, load_runs
from posterity.report.selected_round import RULES, check_rule
from posterity.report.tables import Cell, Row, columns
from posterity.report.verdict import finding, main_contest

__all__ = [
    "RULES",
    "Cell",
    "Column",
    "Contest",
    "ReportError",
    "Row",
    "Run",
    "check_rule",
    "columns",
    "finding",
    "headline",
    "load_runs",
    "main_contest",
    "pack_runs",
    "verdict",
    "write_report",
]
