"""One self-contained HTML page for a run or a comparison of runs, and the same table for the terminal."""

from posterity.report.choosing import RULES, check_rule
from posterity.report.loading import Run, load_runs
from posterity.report.logs import ReportError
from posterity.report.packing import pack_runs
from posterity.report.page import write_report
from posterity.report.summary import finding
from posterity.report.tables import Cell, Column, Row, columns, headline

__all__ = [
    "RULES",
    "Cell",
    "Column",
    "ReportError",
    "Row",
    "Run",
    "check_rule",
    "columns",
    "finding",
    "headline",
    "load_runs",
    "pack_runs",
    "write_report",
]
