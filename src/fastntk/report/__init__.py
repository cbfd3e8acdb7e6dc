"""Records in, self-contained HTML out. Knows no torch, and no model: everything on a page comes from its record."""

from fastntk.base.marks import AUDIT
from fastntk.report.page import render, write_report
from fastntk.report.record import check_record, read_content, read_record, record_digest

__all__ = ["AUDIT", "check_record", "read_content", "read_record", "record_digest", "render", "write_report"]
