"""The terminal's way in."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence

from codauc.options import completion, parser, subparsers


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command; the exit code is 0, 1 if it failed, 2 for bad input, 130 after Ctrl-C."""
    top = parser()
    parsed, strange = top.parse_known_args(arguments)
    options = vars(parsed)
    command = options.pop("command")
    if strange:
        commands = subparsers(top)
        commands.get(command, top).error(f"unrecognized arguments: {' '.join(strange)}")
    if command is None:
        top.print_help()
        return 0
    try:
        if command == "completion":
            print(completion(options["shell"], top), flush=True)
            return 0
        from codauc.commands import COMMANDS  # torch: not for help, nor for a wrong option

        return COMMANDS[command](options)
    except KeyboardInterrupt:
        print("Interrupted; what was finished is kept.", file=sys.stderr)
        return 130
    except BrokenPipeError:  # the reader of a pipe has enough
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    except (ValueError, OSError) as error:
        print(f"codauc {command}: {error}", file=sys.stderr)
        return 2
    except (RuntimeError, MemoryError, ArithmeticError) as error:
        print(f"codauc {command}: {type(error).__name__}: {error}", file=sys.stderr)
        return 1
