"""The command line: one thin door.

Every verb parses, calls one function of a room, and prints its table (or `--json`).  Heavy rooms are
imported inside the verbs, so `causegrid --help` answers at once.
Exit codes: 0 done, 1 a cell or a computation failed, 2 bad input (one line on stderr, nothing written).
"""

from __future__ import annotations

import os
import sys
from typing import Annotated, Any

import typer

from causegrid import terminal
from causegrid.cli import grids, measures  # noqa: F401  (they register their verbs)
from causegrid.cli.options import app
from causegrid.errors import InputError, RunFailed


def _version(asked: bool) -> None:
    if asked:
        from causegrid import __version__

        print(f"causegrid {__version__}")
        raise typer.Exit


@app.callback()
def door(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Show the version and exit.")
    ] = False,
) -> None:
    """Readable is not causal, selective is not causal: causegrid measures the difference."""


def main(arguments: list[str] | None = None) -> int:
    """Run the command line; returns (and, as a script, exits with) the exit code."""
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
    os.environ.setdefault("TRANSFORMERS_VERBOSITY", "error")
    # click's own or typer's copy of it, by typer's version
    usage_error: Any = typer.BadParameter.__bases__[0]
    try:
        code = app(args=arguments, standalone_mode=False)
        result = code if isinstance(code, int) else 0
    except InputError as error:
        terminal.say(f"causegrid: {error}")
        result = 2
    except usage_error as error:
        terminal.say(_usage(error))
        result = 2
    except RunFailed as error:
        terminal.say(f"causegrid: {error}")
        result = 1
    except (typer.Abort, KeyboardInterrupt):
        result = 130
    if result == 130:
        terminal.say("causegrid: interrupted; `causegrid run` goes on from the last finished stage")
    if arguments is None:
        sys.exit(result)
    return result


def _usage(error: Any) -> str:
    """Click's complaint as one line that says where to read on; its help text as it is."""
    if type(error).__name__ == "NoArgsIsHelpError":
        return str(error.format_message())
    message = _named(" ".join(error.format_message().split()), error.__cause__)
    command = error.ctx.command_path if error.ctx is not None else "causegrid"
    return f"causegrid: {message.removesuffix('.')} (see `{command} --help`)"


def _named(message: str, cause: Any) -> str:
    """The complaint with the value it is about, where pydantic made it and left that out."""
    from pydantic import ValidationError

    if not isinstance(cause, ValidationError):
        return message
    given = repr(cause.errors()[0]["input"])
    named = message.replace("Input should", f"{given} should", 1)
    return named if given in named else f"{message.removesuffix('.')} (given: {given})"
