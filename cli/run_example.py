"""`python -m cli.run_example NAME... [--keep]`: runs stories of examples/ on a ledger of their own;
without a name lists them.

The story's folder has `templates/*.json`, which are put first, and a `Procfile`: one process a
line, started together. The last one is the story. What it prints is shown as it comes, and where
it says `$ ledger job history JOB_ID`, what that command says.
"""

from __future__ import annotations

import json
import os
import shlex
import signal
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from string import Template
from typing import TYPE_CHECKING

from cli.api_client import ApiClient, api_client
from cli.failures import explained
from cli.job import print_history
from cli.outcome import CommandError, Exit
from cli.output import line, say
from cli.servers import kafka_of
from cli.settings import load_settings

if TYPE_CHECKING:
    from cli.local import LocalLedger
    from ledger.embedded.processes import Child

ROOT = Path(__file__).resolve().parent.parent
EXAMPLES = ROOT / "examples"
STORY_SECONDS = 120.0
LOOK_SECONDS = 0.05
CHILD_STOP_SECONDS = 5.0
TAIL_CHARACTERS = 3_000
HISTORY = "$ ledger job history "
PROGRAMS = {"python": [], "ledger": ["-m", "cli.main"]}
"""What the first word of a process stands for, behind this interpreter."""


class StoryFailed(Exception):
    """A claim of the story is not true, or one of its processes ended before it."""


def names() -> list[str]:
    return sorted(file.parent.name for file in EXAMPLES.glob("*/Procfile"))


def main(arguments: list[str]) -> int:
    keep = "--keep" in arguments
    wanted = [word for word in arguments if word != "--keep"]
    if not wanted:
        for name in names():
            line(name)
        return Exit.OK
    if unknown := [name for name in wanted if name not in names()]:
        usage = "usage: python -m cli.run_example NAME... [--keep]"
        say(f"{usage}; names are {', '.join(names())}, not {', '.join(unknown)}")
        return Exit.USAGE
    # The modules of a Procfile are found from here, wherever this was called.
    os.chdir(ROOT)
    try:
        failed = run([EXAMPLES / name for name in wanted], keep=keep)
    except KeyboardInterrupt:
        return Exit.INTERRUPTED
    except Exception as error:
        if not isinstance(error, CommandError) and explained(error) is None:
            raise
        line(f"example: FAILED {', '.join(wanted)}: {error}")
        return Exit.BAD
    return Exit.BAD if failed else Exit.OK


def run(folders: Sequence[Path], *, keep: bool = False) -> list[str]:
    """One after the other on one ledger; returns at the end of the last, with the names of those
    that failed. `keep`: at Ctrl-C."""
    from cli.local import LocalLedger, interruptible

    settings = load_settings()
    say("starting Kafka and Postgres")
    ledger = LocalLedger(settings, directory=None, api_port=0, tell=lambda *_: None)
    # Never a real store: stories delete what their users own.
    os.environ["LEDGER_OBJECTS"] = str(ledger.directory / "objects")
    os.environ["LEDGER_MODEL_ALLOW"] = "loopback"
    os.environ["LEDGER_CLEAN_SECONDS"] = "1"
    failed = []
    children: dict[str, Child] = {}
    with interruptible(), ledger:
        os.environ["LEDGER_API_URL"] = ledger.api_url
        for folder in folders:
            for child in children.values():
                child.stop(signal.SIGTERM, seconds=CHILD_STOP_SECONDS)
            put_templates(ledger, folder)
            children = _started(ledger, folder)
            try:
                with api_client(ledger.api_url) as api:
                    _follow(ledger, children, api)
                line(f"example: ok {folder.name}")
            except StoryFailed as error:
                line(f"example: FAILED {folder.name}: {error}")
                failed.append(folder.name)
        if keep:
            say(f"kept until Ctrl-C: LEDGER_API_URL={ledger.api_url}; logs in {ledger.directory}")
            while True:
                time.sleep(1)
    return failed


def _started(ledger: LocalLedger, folder: Path) -> dict[str, Child]:
    from ledger.embedded.processes import free_ports

    os.environ["MODEL_PORT"] = str(free_ports(1)[0])
    return {
        name: ledger.start_child(f"{folder.name}-{name}", words)
        for name, words in processes(folder / "Procfile", os.environ).items()
    }


def put_templates(ledger: LocalLedger, folder: Path) -> None:
    from ledger.client import sync

    settings = ledger.settings
    with sync.Producer(
        kafka_of(settings),
        partitions=settings.partitions,
        prefix=settings.prefix,
        wait_seconds=30.0,
        actor="example",
    ) as producer:
        for file in sorted((folder / "templates").glob("*.json")):
            template = json.loads(file.read_text(encoding="utf-8"))
            queue, type_ = template.pop("queue"), template.pop("type")
            producer.put_template(queue, type_, template)
            line(f"template {type_} in queue {queue}")


def processes(procfile: Path, environment: Mapping[str, str]) -> dict[str, list[str]]:
    """By name: the words of each, as `Child` wants them. Raises KeyError for an unknown variable
    or program."""
    found = {}
    for text in procfile.read_text(encoding="utf-8").splitlines():
        name, _, command = text.partition(":")
        program, *words = shlex.split(Template(command).substitute(environment))
        found[name] = [*PROGRAMS[program], *words]
    return found


def _follow(ledger: LocalLedger, children: dict[str, Child], api: ApiClient) -> None:
    """Shows what the story says until it ends."""
    from cli.local import require_running

    others = dict(children)
    _, story = others.popitem()
    shown = 0
    deadline = time.monotonic() + STORY_SECONDS
    while True:
        running = story.alive  # Asked first: what it printed last is still to be shown.
        *lines, _ = story.output.split("\n")
        for text in lines[shown:]:
            _show(text, api)
        shown = len(lines)
        if not running:
            break
        if time.monotonic() > deadline:
            raise StoryFailed(f"not at its end after {STORY_SECONDS:g} s{_tails(others)}")
        require_running(ledger)
        time.sleep(LOOK_SECONDS)
    if story.failed or not all(child.alive for child in others.values()):
        raise StoryFailed(f"see above{_tails(others)}")


def _show(text: str, api: ApiClient) -> None:
    line(text)
    if text.startswith(HISTORY):
        print_history(api.history(text.removeprefix(HISTORY)))


def _tails(children: Mapping[str, Child]) -> str:
    return "".join(
        f"\n--- {name}{'' if child.alive else ' (ended)'}:\n{child.output[-TAIL_CHARACTERS:]}"
        for name, child in children.items()
    )


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
