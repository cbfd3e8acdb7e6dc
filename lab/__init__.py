"""What makes this project's own pages: experiments, their tables and plots, the README's figures. Not part of the wheel.

The runner, its records and the paper's tables are :mod:`fastntk.reproduce`; this package chooses settings and words results.
"""

from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
"""The repository it stands in: where records are read and pages are written unless options say otherwise."""
