"""`ledger …`: the composition root. Everything it does is importable from the layers below."""

from __future__ import annotations

import sys
from typing import Any

import typer
from typer.core import TyperGroup

from cli import (
    api,
    archive,
    config,
    demo,
    dev,
    doctor,
    job,
    keys,
    model,
    projection,
    queues,
    replay,
    schedule,
    template,
    topics,
    verify,
)
from cli import worker as worker_command
from cli.failures import explained
from cli.outcome import EXIT_CODES, CommandError, Exit
from cli.output import AsJson, line, print_json, say


class LedgerGroup(TyperGroup):
    """Turns what a command raises into a sentence, what to do about it, and an exit code."""

    def invoke(self, ctx: Any) -> Any:
        try:
            return super().invoke(ctx)
        except (typer.Exit, typer.Abort):
            raise
        except KeyboardInterrupt:
            raise typer.Exit(Exit.INTERRUPTED) from None
        except BrokenPipeError:
            # Whoever read our output has had enough.
            sys.stderr.close()
            raise typer.Exit(Exit.OK) from None
        except Exception as error:
            known = error if isinstance(error, CommandError) else explained(error)
            if known is None:
                raise
            say(f"error: {known}")
            if known.fix:
                say(f"  fix: {known.fix}")
            raise typer.Exit(known.exit_code) from None


app = typer.Typer(
    name="ledger",
    cls=LedgerGroup,
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
    help=(
        "The job ledger: every job is a fold over its events, kept in Kafka.\n\n"
        "Begin with `ledger demo`, or with `ledger dev` and `ledger job submit`."
    ),
    epilog=EXIT_CODES,
)

dev.register(app)
topics.register(app)
worker_command.register(app)
api.register(app)
job.register(app)
template.register(app)
schedule.register(app)
queues.register(app)
model.register(app)
keys.register(app)
verify.register(app)
archive.register(app)
replay.register(app)
projection.register(app)
doctor.register(app)
config.register(app)
demo.register(app)


@app.command(help="Print the version.\n\nExample: ledger version", epilog=EXIT_CODES)
def version(as_json: AsJson = False) -> None:
    from ledger import __version__

    if as_json:
        print_json({"version": __version__})
    else:
        line(__version__)


def main() -> None:
    app()


if __name__ == "__main__":
    main()
