"""A command line's frame: one line and an exit code for a user's mistake, no secret in any output."""

import errno
import logging
import sys
import traceback
from collections.abc import Callable
from typing import Any, NoReturn

import typer

from fedray.common.errors import Diverged, UserError, redacted

UsageError: Any = typer.BadParameter.__base__
"""click's, wherever this version of typer has it."""
NoArguments: Any = sys.modules[UsageError.__module__].NoArgsIsHelpError
"""Raised by a bare `fedray` or `fedray data`: its message is the help."""
UNUSABLE = {
    getattr(errno, name)
    for name in ("EACCES", "EPERM", "ENAMETOOLONG", "ENOTDIR", "EISDIR", "ELOOP", "ENOSPC", "EDQUOT", "EROFS")
}
"""What a file system says of a path that a user, and not a programmer, can mend."""


def entry(command: Callable[..., None] | typer.Typer) -> NoReturn:
    """Run a command line: a user's mistake is one line and exit code 2, numbers gone wrong are exit code 3.

    A path that cannot be used is a user's mistake, too, wherever it is found out.
    No secret of an address is printed or logged, in tracebacks of our own mistakes (exit code 1) neither.
    """
    redact_logs()
    logging.basicConfig(format="%(message)s", stream=sys.stderr)
    logging.getLogger("fedray").setLevel(logging.INFO)
    if not isinstance(command, typer.Typer):
        single = typer.Typer(add_completion=False, pretty_exceptions_enable=False, rich_markup_mode=None)
        single.command()(command)
        command = single
    try:
        code = command(standalone_mode=False)
    except typer.Exit as exit_:
        code = exit_.exit_code
    except NoArguments as help:
        print(help.format_message())
        code = 0
    except (UserError, UsageError) as error:
        _refuse(str(error) if isinstance(error, UserError) else error.format_message())
        code = 2
    except Diverged as error:
        print(f"fedray: {error}", file=sys.stderr)
        code = 3
    except (KeyboardInterrupt, typer.Abort):
        code = 130
    except Exception as error:
        if isinstance(error, OSError) and isinstance(error.filename, str) and error.errno in UNUSABLE:
            _refuse(f"{error.filename}: {error.strerror}")
            code = 2
        else:
            print(redacted(traceback.format_exc()), end="", file=sys.stderr)
            code = 1
    sys.exit(code or 0)


def _refuse(message: str) -> None:
    """Print one line, without secrets; what a hostile file holds does not steer the terminal."""
    line = redacted(" ".join(message.split()))
    print(f"fedray: {''.join(c if c.isprintable() else repr(c)[1:-1] for c in line)}", file=sys.stderr)


def redact_logs() -> None:
    """From now on no log record of this process, of whatever package, holds a secret of an address."""
    logging.setLogRecordFactory(_discreet)


def _discreet(*arguments: Any, **more: Any) -> logging.LogRecord:
    """A log record, of whatever package, that holds no secret of an address."""
    record = logging.LogRecord(*arguments, **more)
    record.msg, record.args = redacted(record.getMessage()), ()
    if record.exc_info:
        record.exc_text = redacted("".join(traceback.format_exception(*record.exc_info)).rstrip())
    return record
