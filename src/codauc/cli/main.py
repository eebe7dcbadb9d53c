"""The terminal's way in."""

from __future__ import annotations

import os
import shlex
import sys
import warnings
from collections.abc import Sequence
from typing import Any

from codauc._internal.terminal import message_lines
from codauc.cli.options import Parser, parsers
from codauc.cli.setting_options import in_options
from codauc.runs.settings import ConfigError, ImportPathError


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command; the exit code is 0, 1 if it failed, 2 for bad input, 130 after Ctrl-C."""
    top, commands = parsers()
    parsed, strange = top.parse_known_args(arguments)
    options = vars(parsed)
    command = options.pop("command")
    if strange:
        commands.get(command, top).error(f"unrecognized arguments: {' '.join(strange)}")
    if command is None:
        top.print_help()
        return 0
    if options.pop("help_all", False):
        parsers(full=True)[1][command].print_help()
        return 0
    warnings.showwarning = _show_warning
    try:
        from codauc.cli import commands as functions  # torch: not for help, nor a wrong option

        return int(getattr(functions, command)(options))
    except KeyboardInterrupt:
        print("Interrupted; what was finished is kept.", file=sys.stderr)
        return 130
    except BrokenPipeError:  # the reader of a pipe has enough
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    except (ValueError, OSError) as error:
        _say(commands[command], error, str(error))
        return 2
    except (RuntimeError, MemoryError, ArithmeticError) as error:
        _say(commands[command], error, f"{type(error).__name__}: {error}")
        return 1


def _say(command: Parser, error: Exception, text: str) -> None:
    if isinstance(error, ImportPathError):
        text += f" Or name the network yourself: --model {shlex.quote(error.name[:200])}"
    # a ConfigError names settings as they stand in the file
    if isinstance(error, ImportPathError) or not isinstance(error, ConfigError):
        text = in_options(text, command.options, command.positionals)
    print(message_lines(f"{command.prog}: {text}"), file=sys.stderr)


def _show_warning(message: Warning | str, *_: Any, **__: Any) -> None:
    """A warning as a note on a line of its own: nobody who types a command knows its modules."""
    print(message_lines(f"Note: {message}"), file=sys.stderr)
