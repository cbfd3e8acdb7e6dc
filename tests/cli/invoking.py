"""Commands as a user gives them, in this process."""

from __future__ import annotations

from click.testing import Result
from typer.testing import CliRunner

from fastntk.cli.app import app


def command(*arguments: object, code: int = 0) -> Result:
    """Its outcome, which has to have this exit code."""
    outcome = CliRunner().invoke(app, [str(argument) for argument in arguments])
    assert outcome.exit_code == code, outcome.output
    return outcome
