"""What a report is made of, under the name that a study's contents use; `report/` draws it, so it lives there."""

from gpi.report.blocks import Chart, Line, Report, Section, Table, Tags

__all__ = ["Chart", "Line", "Report", "Section", "Table", "Tags"]
