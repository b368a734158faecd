"""The exit status of every command: one table, which docs/errors.md repeats."""

from __future__ import annotations

from enum import IntEnum


class ExitCode(IntEnum):
    """How a command ended."""

    OK = 0
    FAILED_JOBS = 1
    WRONG_INPUT = 2
    DEFECT = 70
    INTERRUPTED = 130
    CLOSED_PIPE = 141


MEANINGS = {
    ExitCode.OK: "The command did what it was asked to do.",
    ExitCode.FAILED_JOBS: "`run`, `select`, `stress`, `reproduce` or `fit --each`: "
    "some jobs have failed. The others are finished and kept.",
    ExitCode.WRONG_INPUT: "An option, a file or a value cannot be used, or a file "
    "cannot be written. No file was changed, unless only the standard output could "
    "not be written.",
    ExitCode.DEFECT: "A bug in cirm. Please report it, with the whole output.",
    ExitCode.INTERRUPTED: (
        "The user interrupted the command (Ctrl-C). The message "
        "says what is kept and how to continue."
    ),
    ExitCode.CLOSED_PIPE: "The program that reads the standard output has stopped "
    "reading, as `head` does after ten lines.",
}
"""What each exit status means."""
