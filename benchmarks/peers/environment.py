"""The peers' own environment: pinned, made once, beside ours and never part of it."""

from __future__ import annotations

import hashlib
import subprocess
import sys
import venv
from pathlib import Path

HERE = Path(__file__).parent
REQUIREMENTS = HERE / "requirements.txt"
ROOT = HERE.parents[1] / ".ledger-peers"
"""Not in git; `make clean` removes it."""
INSTALL_SECONDS = 600


class PeersUnavailable(Exception):
    """The peers cannot be installed here; the text says what to do."""


def peers_python() -> Path:
    """The interpreter of the environment, which is made if it is not there. A changed
    `requirements.txt` makes another one. Raises `PeersUnavailable`."""
    pinned = REQUIREMENTS.read_bytes() + sys.version.encode()
    place = ROOT / hashlib.sha256(pinned).hexdigest()[:12]
    python, whole = place / "bin" / "python", place / "whole"
    if not whole.exists():
        print(f"installing the peers into {place}", file=sys.stderr)
        _make(place, python)
        whole.touch()
    return python


def _make(place: Path, python: Path) -> None:
    try:
        venv.create(place, with_pip=True, clear=True)
        subprocess.run(
            [
                python, "-m", "pip", "install", "--quiet", "--disable-pip-version-check",
                "--require-hashes", "--only-binary", ":all:", "-r", REQUIREMENTS,
            ],
            check=True,
            timeout=INSTALL_SECONDS,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )  # fmt: skip
    except subprocess.TimeoutExpired:
        raise _unavailable(f"nothing within {INSTALL_SECONDS} s") from None
    except subprocess.CalledProcessError as error:
        said = (error.output or "").strip().splitlines()
        raise _unavailable(said[-1] if said else str(error)) from None
    except OSError as error:
        raise _unavailable(str(error)) from None


def _unavailable(why: str) -> PeersUnavailable:
    return PeersUnavailable(
        f"the peers could not be installed: {why}\nRun `make bench-peers` once where pip reaches a"
        f" package index; {ROOT.name}/ is kept and used from then on."
    )


def pinned_versions() -> dict[str, str]:
    """Of the peers themselves, as `requirements.in` asks for them."""
    lines = (HERE / "requirements.in").read_text().splitlines()
    pinned = (line.split("==") for line in lines if "==" in line)
    return {name.partition("[")[0]: number for name, number in pinned}
