"""The frame of a command line: one line and an exit code for a user's mistake, no secrets in any output."""

import errno
import functools
import io
import json
import logging
import math
import os
import sys
import traceback
from collections.abc import Callable, Mapping
from typing import Annotated, Any, NoReturn

import typer

from fedray.common.errors import Diverged, UserError, escape, join_lines, redact, shorten
from fedray.common.process import INTERRUPTED, treat_sigterm_as_interrupt

CLICK: Any = sys.modules[typer.BadParameter.__base__.__module__]
"""click's exceptions, which versions of typer keep in different places."""
Json = Annotated[bool, typer.Option("--json", help="print JSON instead")]
"""Option of commands that also print for programs."""
CELL = "a number, the beginning of a hash, or a pattern of labels: 'fedtoga*'"
"""Help of every option that names cells, as `Sheet.select` takes them."""
UNUSABLE = {
    getattr(errno, name)
    for name in ("EACCES", "EPERM", "ENAMETOOLONG", "ENOTDIR", "EISDIR", "ELOOP", "ENOSPC", "EDQUOT", "EROFS")
}
"""Errors of a file system about a path that the user can correct."""
Overwrite = Annotated[bool, typer.Option("--overwrite", help="also replace a file with another format's ending")]
"""Option of every command that writes a file which the user names."""
ShowPublished = Annotated[
    bool,
    typer.Option(
        "--published",
        help="show the paper's values next to ours, of the same method, data, model, partition and clients",
    ),
]
"""Option of commands that make tables."""


def format_json(value: object) -> str:
    """Return a value as JSON, with null for numbers that JSON lacks: infinite ones and NaN."""

    def replace(one: Any) -> Any:
        if isinstance(one, Mapping):
            return {key: replace(each) for key, each in one.items()}
        if isinstance(one, list | tuple):
            return [replace(each) for each in one]
        return None if isinstance(one, float) and not math.isfinite(one) else one

    return json.dumps(replace(value), allow_nan=False)


HELP = {"help_option_names": ["-h", "--help"]}


def make_app(command: Callable[..., None]) -> typer.Typer:
    """Return a command line of one command."""
    app = typer.Typer(
        add_completion=False, context_settings=HELP, pretty_exceptions_enable=False, rich_markup_mode=None
    )
    app.command()(command)
    return app


def make_command(request: Callable[..., Any]) -> Callable[..., None]:
    """Return the command whose options and help are those of a request: a dataclass whose `execute` does what it asks
    for and returns the exit code."""

    @functools.wraps(request, updated=())
    def command(**options: Any) -> None:
        raise typer.Exit(request(**options).execute())

    return command


class StderrHandler(logging.StreamHandler[Any]):
    """Writes to what `sys.stderr` is now: a live display takes it over, and prints lines above itself."""

    def emit(self, record: logging.LogRecord) -> None:
        self.setStream(sys.stderr)
        super().emit(record)


def run_command(command: Callable[..., None] | typer.Typer) -> NoReturn:
    """Run a command line. A user's mistake gives one line and exit code 2, a diverged run exit code 3.

    A path or a store that cannot be used is also a user's mistake. Secrets in addresses are neither printed nor logged,
    even in tracebacks of bugs (exit code 1).
    """
    for name in ("stdout", "stderr"):
        if getattr(sys, name) is None:  # the caller has closed it
            setattr(sys, name, open(os.devnull, "w"))  # noqa: SIM115 (until the end of the process)
        stream = getattr(sys, name)
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="replace")  # batch systems have terminals that show ASCII only
    logging.setLogRecordFactory(_make_discreet_record)
    logging.basicConfig(format="%(message)s", handlers=[StderrHandler()])
    logging.getLogger("fedray").setLevel(logging.INFO)
    logging.getLogger("urllib3.connectionpool").setLevel(logging.ERROR)  # of pools and retries, which cost nothing
    app = command if isinstance(command, typer.Typer) else make_app(command)
    try:
        with treat_sigterm_as_interrupt():
            code = app(standalone_mode=False)
        sys.stdout.flush()
    except typer.Exit as exit_:
        code = exit_.exit_code
    except CLICK.NoArgsIsHelpError as help:  # a bare `fedray` or `fedray data`
        print(help.format_message())
        code = 0
    except (UserError, CLICK.UsageError) as error:
        _refuse(str(error) if isinstance(error, UserError) else _describe(error))
        code = 130 if _follows_interrupt(error) else 2
    except Diverged as error:
        _refuse(str(error))
        code = 3
    except typer.Abort as abort:
        if abort.__cause__ is None:  # at a prompt
            sys.exit(130)
        print(redact("".join(traceback.format_exception(abort.__cause__))), end="", file=sys.stderr)  # an EOFError
        code = 1
    except KeyboardInterrupt:
        code = 130
    except Exception as error:
        if _follows_interrupt(error):
            code = 130
        elif isinstance(error, RuntimeError) and "home directory" in str(error):
            _refuse("HOME: it is not set, and this user has no entry in passwd; set it to a folder that can be written")
            code = 2
        elif isinstance(error, OSError) and isinstance(error.filename, str | None) and error.errno in UNUSABLE:
            _refuse(f"{error.filename or 'standard output or a file'}: {error.strerror}")
            code = 2
        elif type(error).__module__.startswith("mlflow."):
            _refuse(f"MLFLOW_TRACKING_URI: the store cannot be used: {join_lines(error)}")
            code = 2
        else:
            print(redact(traceback.format_exc()), end="", file=sys.stderr)
            code = 1
    if code == 130:  # typer's, for KeyboardInterrupt
        print(INTERRUPTED, file=sys.stderr)
    sys.exit(code or 0)


def _follows_interrupt(error: BaseException | None) -> bool:
    """Return True if clearing up after an interrupt raised an exception, as it may in the middle of an import."""
    while error is not None and not isinstance(error, KeyboardInterrupt):
        error = error.__context__
    return error is not None


def _describe(error: Any) -> str:
    """Return a wrong call's message, with what is missing."""
    message = str(error.format_message())
    if isinstance(error, CLICK.MissingParameter) and getattr(error.param, "help", None):
        return f"{message.removesuffix('.')}: {error.param.help}"
    return message


def _refuse(message: str) -> None:
    """Print one short line without secrets, and without control characters that could steer the terminal."""
    line = redact(" ".join(message.split()))
    print(shorten(f"fedray: {escape(line)}"), file=sys.stderr)


def _make_discreet_record(*arguments: Any, **more: Any) -> logging.LogRecord:
    """Return a log record, of any package, without the secrets of addresses."""
    record = logging.LogRecord(*arguments, **more)
    record.msg, record.args = "\n".join(map(shorten, redact(record.getMessage()).split("\n"))), ()
    if record.exc_info:
        record.exc_text = redact("".join(traceback.format_exception(*record.exc_info)).rstrip())
    return record
