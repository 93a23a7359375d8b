"""The command line of Rankless. A command imports its heavy modules only when it runs.

A recipe and its ``key=value`` overrides determine the result. Options determine where and how a command runs.
"""

from __future__ import annotations

import io
import sys
import time
import traceback
from collections.abc import Sequence
from typing import TextIO

from cyclopts import CycloptsError

from rankless.cli import (  # noqa: F401  # each adds its commands to app
    completion,
    data,
    doctor,
    judging,
    library,
    new,
    planning,
    predicting,
    submit,
    training,
    tuning,
    viewing,
)
from rankless.cli.cli_errors import as_user_error
from rankless.cli.foreign_options import refuse_foreign
from rankless.cli.options import app, refuse_repeated
from rankless.errors import OutputError, UserError, of_the_system
from rankless.launch import environments
from rankless.printing import discard_output

# Seconds that other ranks wait before they exit: torchrun ends rank 0 when another rank exits, and rank 0
# must print its message first.
_FOR_RANK_0 = 5.0

_FIRST_STEPS = """\
Rankless trains image detectors and classifiers on one device or on many:
the same weights, bit for bit.

Start with:
  rankless doctor              Check whether this machine can train.
  rankless train digits        Train a detector on built-in data in minutes.
  rankless data check DATA     Check your own data set for mistakes.
  rankless train DATA          Train on your data, with suitable settings.
  rankless predict RUN IMAGES  Detect objects in images and draw them.
  rankless report RUN          Write a report with scores, curves and images.

All commands: rankless --help
"""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one ``rankless`` command, by default the one in ``sys.argv``, and return its exit code.

    The code is 0 for success, 1 for a failure, 2 for a user's mistake, and 130 after Ctrl-C.
    """
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):  # the terminal may be unable to encode a name
            stream.reconfigure(errors="backslashreplace")
    words = sys.argv[1:] if arguments is None else arguments
    if not words:
        print(_FIRST_STEPS, end="")
        return 0
    try:
        _refuse(words)
        result = app(arguments, exit_on_error=False, print_error=False, result_action="return_value")
        sys.stdout.flush()
        return result if isinstance(result, int) else 0
    except UserError as error:
        return _report(error)
    except CycloptsError as error:
        return _report(as_user_error(error) if environments.speaks() else UserError([]))
    except KeyboardInterrupt:
        advice = "; to continue a training run: rankless train --resume --run RUN"
        print(f"interrupted{advice if 'train' in words[:1] else ''}", file=sys.stderr)
        return 130
    except BrokenPipeError:  # the reader, such as head, needs no more
        discard_output(sys.stdout)
        return 0
    except Exception as error:
        if isinstance(error, OSError) and error.filename is None and not _can_be_flushed(sys.stdout):
            discard_output(sys.stdout)
            return _report(
                OutputError(f"the output cannot be written ({error.strerror}); redirect it elsewhere")
            )
        from rankless.user_code import blamed

        if problem := of_the_system(error) or blamed(error):
            return _report(problem)
        traceback.print_exc()
        print("error: this is a bug in Rankless; please report it with the lines above", file=sys.stderr)
        return 1


def _refuse(words: Sequence[str]) -> None:
    """Raise a UserError, without a text unless this rank speaks, for words that the parser would accept."""
    try:
        refuse_repeated(words)
        refuse_foreign(words)
    except UserError:
        if environments.speaks():
            raise
        raise UserError([]) from None


def _can_be_flushed(stream: TextIO) -> bool:
    try:
        stream.flush()
    except OSError:
        return False
    return True


def _report(error: UserError) -> int:
    for problem in error.problems:
        print(f"error: {problem}", file=sys.stderr)
    if not error.problems:
        time.sleep(_FOR_RANK_0)
    return error.exit_code
