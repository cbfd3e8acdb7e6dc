"""Records in, self-contained HTML out. Knows no torch, and no model: everything on a page comes from its record."""

from fastntk.auditing.record import record_digest
from fastntk.report.page import render, write_report
from fastntk.report.record import check_record, read_content, read_record

__all__ = ["check_record", "read_content", "read_record", "record_digest", "render", "write_report"]
