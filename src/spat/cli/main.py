"""Find the verb, run it, and turn errors into one line and an exit code.

Exit codes: 0 done; 2 something to correct, told in one sentence; 130, 143 or 129 stopped by Ctrl-C,
SIGTERM or the end of its terminal (a training run has then left a checkpoint to go on from).
"""

from __future__ import annotations

import errno
import importlib
import os
import pkgutil
import sys
from collections.abc import Sequence

import spat
from spat import launcher
from spat.errors import ToldError, UserError, unknown

MISTAKEN = 2
INTERRUPTED = 130
SHARED = ("evaluate", "train")  # what several processes do together


def main(argv: Sequence[str] | None = None) -> int:
    """Run a command line; returns its exit code."""
    arguments = list(sys.argv[1:] if argv is None else argv)
    # Threads that spin while they wait make a run many times slower wherever another process wants
    # a core too. OpenMP reads this once, when torch is first imported.
    os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
    _open_what_is_closed()
    try:
        code = _dispatch(arguments)
        sys.stdout.flush()  # fails here, where it can be told, rather than when Python ends
        return code
    except ToldError:
        return MISTAKEN
    except UserError as error:
        print(f"spat: {error}", file=sys.stderr)
        return MISTAKEN
    except KeyboardInterrupt:
        print("spat: interrupted.", file=sys.stderr)
        return INTERRUPTED
    except BrokenPipeError:  # `spat list | head`: the reader has seen enough
        _say_no_more()
        return 0
    except OSError as error:
        if error.errno != errno.ENOSPC:
            raise
        _say_no_more()  # files of ours fail in a sentence of their own: it was standard output
        print(f"spat: could not write the output: {error.strerror}.", file=sys.stderr)
        return MISTAKEN


def _say_no_more() -> None:
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _open_what_is_closed() -> None:
    """What is said by a process that was started without standard output or error goes nowhere."""
    for name in ("stdout", "stderr"):
        if getattr(sys, name) is None:
            setattr(sys, name, open(os.devnull, "w", encoding="utf-8"))  # noqa: SIM115


def verbs() -> list[str]:
    folder = importlib.import_module("spat.cli").__path__
    found = (module.name for module in pkgutil.iter_modules(folder))
    return sorted(name for name in found if not name.startswith("_") and name != "main")


def _dispatch(arguments: list[str]) -> int:
    if not arguments or arguments[0] in ("-h", "--help", "help"):
        print(_overview())
        return 0
    if arguments[0] in ("-V", "--version"):
        print(f"spat {spat.__version__}")
        return 0
    verb, rest = arguments[0], arguments[1:]
    if verb not in verbs():
        raise unknown("command", verb, verbs())
    if verb not in SHARED and launcher.is_shared():
        raise _for_one(verb)
    code: int = importlib.import_module(f"spat.cli.{verb}").run(rest)
    return code


def _for_one(verb: str) -> UserError:
    """Each of the processes finds it; the first says it."""
    return (UserError if launcher.rank() == 0 else ToldError)(
        f"spat {verb} is for one process: start it without torchrun, and without WORLD_SIZE and "
        "RANK in its environment."
    )


def _overview() -> str:
    lines = ["usage: spat COMMAND [options]   (spat COMMAND --help tells them)", ""]
    for verb in verbs():
        text = importlib.import_module(f"spat.cli.{verb}").__doc__ or ""
        lines.append(f"  {verb:10} {text.partition(chr(10))[0]}")
    return "\n".join(lines)
