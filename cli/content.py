"""What the commands read: files, and JSON, labels on the command line."""

from __future__ import annotations

import json
import sys
import tomllib
from pathlib import Path
from typing import Any

from cli.outcome import CommandError, Exit


def content_of(file: Path) -> dict[str, Any]:
    """Of a JSON or TOML file."""
    text = file.read_text(encoding="utf-8")
    try:
        content = tomllib.loads(text) if file.suffix == ".toml" else json.loads(text)
    except ValueError as error:
        raise CommandError(f"{file} cannot be read: {error}", exit_code=Exit.USAGE) from None
    if not isinstance(content, dict):
        raise CommandError(f"{file} holds no object", exit_code=Exit.USAGE)
    return content


def text_of(text: str) -> str:
    """As given; of a file for `@FILE`, of standard input for `-`."""
    if text == "-":
        return sys.stdin.read()
    return Path(text[1:]).read_text(encoding="utf-8") if text.startswith("@") else text


def json_of(text: str | None, option: str = "--payload") -> Any:
    if text is None:
        return None
    try:
        return json.loads(text_of(text))
    except ValueError as error:
        raise CommandError(
            f"{option} is not JSON: {error}",
            fix=f"quote it for the shell: {option} '{{\"a\": 1}}', or give a file:"
            f" {option} @a.json",
            exit_code=Exit.USAGE,
        ) from None


def labels_of(pairs: list[str] | None) -> dict[str, str] | None:
    if not pairs:
        return None
    labels = {}
    for pair in pairs:
        name, equals, value = pair.partition("=")
        if not equals or not name:
            raise CommandError(
                f"--label {pair!r} is not KEY=VALUE", fix="--label user=42", exit_code=Exit.USAGE
            )
        labels[name] = value
    return labels


def given(body: dict[str, Any]) -> dict[str, Any]:
    """Without what was not said."""
    return {name: value for name, value in body.items() if value is not None}
