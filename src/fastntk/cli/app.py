"""The typer application: its commands, and the one place where an exception becomes a message and an exit code."""

from __future__ import annotations

import errno
import inspect
import traceback
from importlib import metadata
from typing import Annotated, Any

import typer
from typer.core import TyperGroup

from fastntk.base.atomic import changes
from fastntk.base.errors import InputError
from fastntk.cli.audit import audit
from fastntk.cli.demo import demo
from fastntk.cli.erase import erase
from fastntk.cli.finetune import finetune
from fastntk.cli.info import info
from fastntk.cli.output import note
from fastntk.cli.plan import plan
from fastntk.cli.pretrain import pretrain
from fastntk.cli.report import report
from fastntk.cli.reproduce import reproduce
from fastntk.cli.signals import say_interrupted, say_unread
from fastntk.cli.unlearn import unlearn

DEBUG = "FASTNTK_DEBUG"

# typer carries a copy of click from some release on; this finds the base of its usage errors in either.
_USAGE: type[Exception] = next(kind for kind in typer.BadParameter.__mro__ if kind.__name__ == "ClickException")
_SYSTEM = {errno.ENOSPC, errno.EDQUOT, errno.EACCES, errno.EPERM, errno.EROFS, errno.ENAMETOOLONG}


class Guarded(TyperGroup):
    """A command group in which no exception of a command escapes as a traceback."""

    def invoke(self, ctx: Any) -> Any:
        """Run a command and turn what it raises into a message on standard error and an exit code."""
        debug = bool(ctx.params.get("debug"))
        try:
            return super().invoke(ctx)
        except (typer.Exit, _USAGE):
            raise
        except BrokenPipeError:
            raise typer.Exit(say_unread()) from None
        except (KeyboardInterrupt, typer.Abort) as interrupt:
            if debug:
                traceback.print_exc()
            raise typer.Exit(say_interrupted(interrupt)) from None
        except InputError as error:
            _fail(f"Error: {error}", debug=debug)
            raise typer.Exit(2) from None
        except OSError as error:
            if error.errno not in _SYSTEM:
                _unexpected(error, debug=debug)
                raise typer.Exit(1) from None
            where = "" if error.filename is None else f" ({error.filename})"
            _fail(f"Error: the system refuses: {error.strerror}{where}.{_complete()}", debug=debug)
            raise typer.Exit(2) from None
        except Exception as error:
            _unexpected(error, debug=debug)
            raise typer.Exit(1) from None


def reflowed(text: str) -> str:
    """A docstring with each paragraph on one line: the terminal breaks it, not our source."""
    return "\n\n".join(" ".join(paragraph.split()) for paragraph in text.split("\n\n"))


app = typer.Typer(
    cls=Guarded,
    name="fastntk",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 110},
)

for command in (demo, finetune, plan, unlearn, audit, report, info, erase, pretrain, reproduce):
    app.command(help=reflowed(inspect.getdoc(command) or ""))(command)


def _version(wanted: bool) -> None:
    if wanted:
        typer.echo(metadata.version("fastntk"))
        raise typer.Exit


@app.callback()
def options(
    debug: Annotated[bool, typer.Option("--debug", envvar=DEBUG, help="Show the traceback of whatever goes wrong.")] = False,
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Print the version and leave.")
    ] = False,
) -> None:
    """Make a fine-tuned image classifier forget a class, a person or a list of images.

    Start with: fastntk demo --out demo-out
    """


def _complete() -> str:
    """What was written or removed before a failure, as a sentence: the same command again would find it there."""
    actions = changes()
    return f" Complete all the same: {'; '.join(actions[:5])}." if actions else ""


def _fail(message: str, *, debug: bool) -> None:
    """Print to standard error; the traceback first where debugging was asked for."""
    if debug:
        note(traceback.format_exc())
    note(message)


def _unexpected(error: Exception, *, debug: bool) -> None:
    text = str(error).strip().splitlines()
    _fail(
        f"fastntk failed in a way it should not: {type(error).__name__}: {text[0] if text else 'no message'}\n"
        "This is a bug of fastntk: please report it with the command you ran and what `fastntk --debug ...` prints.",
        debug=debug,
    )
