"""Reports: profiles on any page and as JSON. Nothing is measured or concluded here."""

from iobench.report.json_report import to_json
from iobench.report.run_report import RunReport, make_reports
from iobench.report.text_report import render_markdown, render_terminal

__all__ = ["RunReport", "make_reports", "render_markdown", "render_terminal", "to_json"]
