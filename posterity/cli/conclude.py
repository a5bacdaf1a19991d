"""The end of a command that ran something, or shows what was run: the report's page, its table, runs that diverged."""

from __future__ import annotations

from pathlib import Path

from posterity.cli.output import Output


def conclude(folder: Path, output: Output) -> None:
    """The table and the report of what was run."""
    from posterity.cli.diverged import end_if_diverged
    from posterity.engine.distributed import started_first

    if started_first():
        write_page(folder, None, output)
        end_if_diverged(folder)


def write_page(folder: Path, out: Path | None, output: Output) -> None:
    """The report of a folder, or of a file of packed runs, and its table."""
    from posterity.cli.show import show_runs
    from posterity.experiment.verify import reported
    from posterity.report import write_report

    with reported(folder):
        page = write_report(folder, out, output.show)
    show_runs(folder, output, page)


__all__ = ["conclude", "write_page"]
