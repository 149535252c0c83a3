"""Conditions: the closed part of CEL in which `when` and `success_when` are written.

An expression is read twice: here as tokens, which say by name what is not allowed, and by the
library, which must find the same names. Only tokens tell a macro: the library has unfolded
`map(payload, …)` before it can be asked. Nothing in the language knows a clock, a zone or chance.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from functools import lru_cache
from typing import TYPE_CHECKING, Any, NamedTuple, final

from msgspec import Struct

from ledger.domain.ids import StepName
from ledger.domain.strict_json import escaped
from ledger.domain.wrong import Wrong

if TYPE_CHECKING:
    import cel

LENGTH_MAX = 500
"""Characters of an expression. What it can build is bounded by this times what it is given."""
PATTERN_ROOM = 16
"""How many times over the patterns of an expression must fit the regex engine's own limit (1 MiB).

The engine is linear in the text, but compiles a pattern at each use: 0.3 ms for a Unicode `\\w`,
3 ms for the largest that is let through, 70 ms for one that just fits the engine's limit.
"""

_ROOTS = frozenset({"payload", "labels", "steps"})
_OF_A_STEP = frozenset({"status", "output"})
_WORDS = frozenset({"true", "false", "null", "in"})
_FUNCTIONS = frozenset({"has", "size", "string", "int", "double"})
_METHODS = frozenset({"size", "contains", "startsWith", "endsWith", "matches"})
_OPERATORS = frozenset(
    {"_&&_", "_||_", "!_", "_?_:_", "_[_]", "@in", "_+_", "_-_", "-_", "_*_", "_/_", "_%_"}
    | {"_==_", "_!=_", "_<_", "_<=_", "_>_", "_>=_"}
)
_MACROS = frozenset({"all", "exists", "exists_one", "existsOne", "map", "filter"})


@final
class Condition(Struct, frozen=True, gc=False):
    """An expression that was found good. May be asked from several threads."""

    text: str
    steps: frozenset[StepName]
    """Whose status or output it looks at."""
    pointers: tuple[str, ...]
    """All that it can look at, as JSON pointers into `{payload, labels, steps}`."""
    program: cel.Program
    needs: dict[str, Any]
    """`pointers` as a tree of keys; an empty branch is all that lies there."""

    def holds(self, payload: object, labels: dict[str, str], steps: dict[str, Any]) -> bool:
        """False for what is undefined, of the wrong type, out of range or no boolean; never raises.

        `steps`: name to `{status, output}` of those that may be looked at. Measured 20 us, and no
        more for a payload of 64 KiB: only what the expression names is handed over.
        """
        known = {"payload": payload, "labels": labels, "steps": steps}
        try:
            return self.program.execute(_narrowed(known, self.needs)) is True
        except Exception:  # The library has an exception for each way of being undefined.
            return False


def compiled(text: str) -> Condition | Wrong:
    """The same text is compiled once (0.1 ms, with patterns up to 0.1 s)."""
    if len(text) > LENGTH_MAX:
        return Wrong("", f"a condition has {LENGTH_MAX} characters at most")
    return _compiled(text)


@lru_cache(maxsize=1024)
def _compiled(text: str) -> Condition | Wrong:
    tokens = _tokens(text)
    if isinstance(tokens, Wrong):
        return tokens
    if wrong := _not_allowed(tokens):
        return wrong
    try:
        program = _program(text)
    except ValueError as error:
        return Wrong("", _parse_error(str(error)))
    # The library's own reading: it differs only if one of the two readings has a mistake.
    if not _ROOTS.issuperset(program.variables()):
        return Wrong("", "only payload, labels and steps are known, without a leading dot")
    if not (_OPERATORS | _FUNCTIONS | _METHODS).issuperset(program.functions()):
        return Wrong("", "only comparisons, arithmetic and the listed functions can be used")
    paths = set(_paths(tokens))
    if wrong := _wrong_step(paths) or _wrong_pattern(tokens) or _wrong_constant(program):
        return wrong
    least = sorted(path for path in paths if not any(path[:n] in paths for n in range(len(path))))
    return Condition(
        text,
        frozenset(StepName(path[1]) for path in paths if path[0] == "steps"),
        tuple("".join(f"/{escaped(part)}" for part in path) for path in least),
        program,
        _tree(least),
    )


# --- Tokens --------------------------------------------------------------------------------------
class _Token(NamedTuple):
    kind: str
    text: str


_TOKEN = re.compile(
    r"""
    (?P<blank> [ \t\r\n\f]+ | //[^\r\n]* )
  | (?P<text>  [rR] (?: "[^"\r\n]*" | '[^'\r\n]*' )
             | " (?: [^"\\\r\n] | \\[^\r\n] )* " | ' (?: [^'\\\r\n] | \\[^\r\n] )* ' )
  | (?P<number> 0[xX][0-9a-fA-F]+ [uU]? | (?: [0-9]+ (?: \.[0-9]+ )? | \.[0-9]+ )
                (?: [eE][+-]?[0-9]+ )? [uU]? )
  | (?P<name>  [A-Za-z_][A-Za-z0-9_]* )
  | (?P<sign>  && | \|\| | [=!<>]= | [-+*/%<>!?:.,()\[\]{}] )
    """,
    re.VERBOSE,
)
_END = _Token("end", "")


def _tokens(text: str) -> list[_Token] | Wrong:
    """Without blanks and comments, between two `_END`s, so that each has neighbours."""
    tokens = [_END]
    at = 0
    while at < len(text):
        match = _TOKEN.match(text, at)
        if match is None:
            return Wrong("", f"character {at + 1}: {text[at]!r} is not understood here")
        at = match.end()
        if match.lastgroup == "blank":
            continue
        token = _Token(str(match.lastgroup), match.group())
        if token.kind == tokens[-1].kind == "text":  # What the library takes for one, of three ".
            return Wrong("", f"character {at}: a text in triple quotes is not part of conditions")
        tokens.append(token)
    return [*tokens, _END]


def _not_allowed(tokens: list[_Token]) -> Wrong | None:
    for index, (kind, name) in enumerate(tokens):
        if kind != "name":
            continue
        before, after = tokens[index - 1].text, tokens[index + 1].text
        if after == "{" and name not in _WORDS:
            return Wrong("", f"{name}{{…}}: there are no messages in conditions")
        if after == "(":
            if name in (_METHODS if before == "." else _FUNCTIONS):
                continue
            return Wrong("", _unknown_function(name))
        if before != "." and name not in _ROOTS and name not in _WORDS:
            return Wrong("", f"{name}: only payload, labels and steps are known; quote a text")
    return None


def _unknown_function(name: str) -> str:
    if name in _MACROS:
        return f"{name}(…): conditions do not walk over lists; let an earlier step's output say it"
    functions = ", ".join(sorted(_FUNCTIONS))
    methods = ", ".join(f".{method}" for method in sorted(_METHODS))
    return f"{name}(…): only {functions} and {methods} can be called so"


def _paths(tokens: list[_Token]) -> Iterator[tuple[str, ...]]:
    """Each place that is named: a root and the keys after it, as far as they are written out."""
    for index, (kind, name) in enumerate(tokens):
        if kind != "name" or name not in _ROOTS or tokens[index - 1].text == ".":
            continue
        path = [name]
        at = index + 1
        while True:
            first, *rest = tokens[at : at + 3]
            if first.text == "." and rest[0].kind == "name" and rest[1].text != "(":
                path.append(rest[0].text)
                at += 2
            elif first.text == "[" and rest[1].text == "]" and (key := _plain(rest[0])) is not None:
                path.append(key)
                at += 3
            else:
                break
        yield tuple(path)


def _plain(token: _Token) -> str | None:
    """The value of a text without escapes."""
    is_plain = token.kind == "text" and token.text[0] in "'\"" and "\\" not in token.text
    return token.text[1:-1] if is_plain else None


# --- Checks --------------------------------------------------------------------------------------
def _wrong_step(paths: set[tuple[str, ...]]) -> Wrong | None:
    for path in sorted(paths):
        if path[0] == "steps" and (len(path) < 3 or path[2] not in _OF_A_STEP):
            name = path[1] if len(path) > 1 else "<name>"
            return Wrong("", f"of steps only steps.{name}.status and .output can be asked for")
    return None


def _wrong_pattern(tokens: list[_Token]) -> Wrong | None:
    patterns = []
    for index, (kind, name) in enumerate(tokens):
        if kind == "name" and name == "matches" and tokens[index + 1].text == "(":
            argument, closing = tokens[index + 2], tokens[index + 3]
            if argument.kind != "text" or closing.text != ")":
                return Wrong("", "matches(…): the pattern must stand there as a text")
            patterns.append(argument.text)
    for pattern in patterns:
        if reason := _refusal(pattern):
            return Wrong("", f"matches({pattern[:80]}): {reason}")
    # The line end closes a comment that a pattern may leave open.
    together = "'(?:' + " + r" + '\n|' + ".join(patterns) + rf" + '\n){{{PATTERN_ROOM}}}'"
    if patterns and _refusal(together):
        return Wrong("", "matches(…): the patterns are too large; use fewer counts and classes")
    return None


def _program(text: str) -> cel.Program:
    # Imported where the first condition is: it brings its own command line along, 0.2 s of CPU
    # that no process without conditions should pay.
    import cel

    return cel.compile(text)


def _refusal(pattern: str) -> str | None:
    """Why the regex engine does not take the text that a CEL expression gives."""
    try:
        _program(f"''.matches({pattern})").execute({})
    except (ValueError, RuntimeError) as error:
        reason = re.search(r"^error: (.+?)(?:\. Check function|$)", str(error), re.MULTILINE)
        return reason.group(1)[:150] if reason else "larger than the engine takes"
    return None


def _wrong_constant(program: cel.Program) -> Wrong | None:
    """What looks at nothing can be asked at once."""
    if program.variables():
        return None
    try:
        answer = program.execute({})
    except Exception:  # As in `holds`.
        return Wrong("", "it is always undefined")
    return None if isinstance(answer, bool) else Wrong("", "it is neither true nor false")


def _parse_error(text: str) -> str:
    if "Recursion limit" in text:
        return "it is nested too deeply"
    found = re.search(r"ERROR: <input>:(\d+):(\d+): (.+?)(?: expecting .*)?$", text, re.MULTILINE)
    if not found:
        return "it is no CEL expression"
    line, column, reason = found.groups()
    return f"line {line}, character {column}: {reason[:150]}"


# --- What is handed over -------------------------------------------------------------------------
def _tree(paths: list[tuple[str, ...]]) -> dict[str, Any]:
    tree: dict[str, Any] = {}
    for path in paths:
        branch = tree
        for part in path:
            branch = branch.setdefault(part, {})
    return tree


def _narrowed(value: object, needs: dict[str, Any]) -> Any:
    if not needs or not isinstance(value, dict):
        return value
    return {key: _narrowed(value[key], below) for key, below in needs.items() if key in value}
