"""The paper's tables, for whoever wants to reproduce them: its cells as data, and a runner that can be stopped at any time.

A record is what ``audit`` returns for what ``unlearn`` made; tables are projections of records. Nothing is measured here.
"""

from fastntk.reproduce.runner import Step, plan, run_steps
from fastntk.reproduce.setting import MethodRow, Request, Setting

__all__ = ["MethodRow", "Request", "Setting", "Step", "plan", "run_steps"]
