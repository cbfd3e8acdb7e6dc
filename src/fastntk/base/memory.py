"""How much memory this process may still take: the smaller of what the machine and its control group have
left; and the one budget that plans, solvers and rows share.

Linux only has both figures; elsewhere the physical size stands in. :func:`memory_allowed` is the one place that decides how
much of it work may take when nobody says. Not for disk space.
"""

from __future__ import annotations

import os
from pathlib import Path

from fastntk.base.errors import InputError

MEMINFO = Path("/proc/meminfo")
CGROUP = Path("/sys/fs/cgroup")
SHARE = 0.7
"""Of the memory available, what work may take where no budget is given; the rest is for the network and other processes."""


def memory_allowed(budget: int | None) -> int:
    """Return the budget in bytes: the one given or, for None, :data:`SHARE` of what is available now."""
    if budget is None:
        return int(SHARE * available_memory())
    if isinstance(budget, bool) or not budget > 0:
        raise InputError(f"memory_budget is a number of bytes above 0, got {budget!r}.")
    return int(budget)


def available_memory(*, meminfo: Path = MEMINFO, cgroup: Path = CGROUP) -> int:
    """Return the bytes available now."""
    figures = [_machine(meminfo), _group(cgroup)]
    limits = [figure for figure in figures if figure is not None]
    return min(limits) if limits else os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")


def _machine(meminfo: Path) -> int | None:
    try:
        lines = meminfo.read_text().splitlines()
    except OSError:
        return None
    for line in lines:
        if line.startswith("MemAvailable:"):
            return int(line.split()[1]) * 1024
    return None


def _group(cgroup: Path) -> int | None:
    """Limit less use of a version-2 control group; page cache counts as use but can be reclaimed."""
    try:
        limit = (cgroup / "memory.max").read_text().strip()
        usage = int((cgroup / "memory.current").read_text())
        stat = dict(line.split() for line in (cgroup / "memory.stat").read_text().splitlines())
    except (OSError, ValueError):
        return None
    if limit == "max":
        return None
    return max(0, int(limit) - usage + int(stat.get("inactive_file", 0)))
