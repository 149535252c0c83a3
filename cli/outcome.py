"""How a command ends: exit codes, and errors that say what to do."""

from __future__ import annotations

from enum import IntEnum


class Exit(IntEnum):
    OK = 0
    BAD = 1
    """It was done, and the answer is bad: a check failed, a job did not succeed."""
    USAGE = 2
    """The command line or the settings are wrong."""
    NOT_FOUND = 3
    REFUSED = 4
    """The ledger refused; the code says why."""
    UNAVAILABLE = 5
    """Something that is needed does not answer, or is taken."""
    UNDECIDED = 6
    """The command is in the log, and no decision came in time; repeating it is safe."""
    INTERRUPTED = 130


EXIT_CODES = (
    "Exit codes: 0 done; 1 done, and the answer is bad (a check failed, a job did not succeed);"
    " 2 wrong usage or settings; 3 not found; 4 refused by the ledger; 5 something needed does not"
    " answer; 6 not decided in time, repeating is safe."
)


class CommandError(Exception):
    """Ends the command. The text says what is wrong, `fix` what to do about it."""

    def __init__(self, text: str, *, fix: str = "", exit_code: Exit = Exit.UNAVAILABLE) -> None:
        super().__init__(text)
        self.fix = fix
        self.exit_code = exit_code
