"""`GET /docs`: the OpenAPI document as one page, without a script and without another host."""

from __future__ import annotations

import json
from collections.abc import Iterable
from html import escape
from pathlib import Path
from typing import Any

from api.problems import CODES

Json = dict[str, Any]
STYLE = (Path(__file__).parent / "static" / "docs.css").read_text(encoding="utf-8")
POLICY = "default-src 'none'; style-src 'unsafe-inline'; base-uri 'none'; frame-ancestors 'none'"
"""Its Content-Security-Policy: nothing but its own style."""


def page(document: Json) -> bytes:
    title = f"{document['info']['title']} {document['info']['version']}"
    by_tag: dict[str, list[str]] = {}
    links: dict[str, list[str]] = {}
    for path, methods in document["paths"].items():
        for method, operation in methods.items():
            [tag] = operation["tags"]
            by_tag.setdefault(tag, []).append(_operation(method, path, operation))
            name = escape(operation["operationId"])
            link = f'<li><a href="#{name}"><b>{method.upper()}</b> {escape(path)}</a></li>'
            links.setdefault(tag, []).append(link)
    navigation = "".join(
        f"<h3>{escape(tag)}</h3><ul>{''.join(items)}</ul>" for tag, items in links.items()
    )
    sections = "".join(
        f"<section><h2>{escape(tag)}</h2>{''.join(parts)}</section>"
        for tag, parts in by_tag.items()
    )
    return (
        "<!doctype html><html lang=en><head><meta charset=utf-8>"
        '<meta name=viewport content="width=device-width, initial-scale=1">'
        f"<title>{escape(title)}</title><style>{STYLE}</style></head><body>"
        f"<nav><h1>{escape(title)}</h1>{navigation}"
        "<h3>more</h3><ul><li><a href='#codes'>Codes</a></li>"
        "<li><a href='#schemas'>Schemas</a></li>"
        "<li><a href='/openapi.json'>openapi.json</a></li></ul></nav>"
        f"<main><p>{_prose(document['info']['description'])}</p>{sections}"
        f"{_codes()}{_schemas(document['components']['schemas'])}</main></body></html>"
    ).encode()


def _operation(method: str, path: str, operation: Json) -> str:
    name = escape(operation["operationId"])
    body = ""
    if "requestBody" in operation:
        schema = operation["requestBody"]["content"]["application/json"]["schema"]
        must = "required" if operation["requestBody"]["required"] else "may be left out"
        body = f"<h4>Body</h4><p>{_type(schema)}, {must}</p>"
    return (
        f'<article id="{name}"><h3><b class="{method}">{method.upper()}</b> '
        f"<code>{escape(path)}</code></h3><p>{escape(operation['summary'])}</p>"
        f"{_parameters(operation['parameters'])}{body}"
        f"<h4>Answers</h4><dl>{''.join(_answers(operation['responses']))}</dl></article>"
    )


def _parameters(parameters: list[Json]) -> str:
    if not parameters:
        return ""
    rows = "".join(
        f"<tr><td><code>{escape(one['name'])}</code></td><td>{one['in']}</td>"
        f"<td>{_type(one['schema'])}</td><td>{_prose(one.get('description', ''))}</td></tr>"
        for one in parameters
    )
    return f"<h4>Parameters</h4><table>{rows}</table>"


def _answers(responses: Json) -> Iterable[str]:
    for status, response in responses.items():
        content = "".join(
            f" <small>{escape(media)} {_type(one['schema'])}</small>"
            for media, one in response.get("content", {}).items()
        )
        yield f"<dt>{status}</dt><dd>{_prose(response['description'])}{content}</dd>"


def _codes() -> str:
    rows = "".join(
        f'<tr id="{code}"><td><code>{code}</code></td><td>{known.status}</td>'
        f"<td>{_prose(known.title)}</td></tr>"
        for code, known in sorted(CODES.items())
    )
    return f"<section id=codes><h2>Codes</h2><table>{rows}</table></section>"


def _schemas(schemas: Json) -> str:
    parts = "".join(
        f'<article id="schema-{escape(name)}"><h3>{escape(name)}</h3>'
        f"<p>{_prose(schema.get('description', ''))}</p>{_fields(schema)}</article>"
        for name, schema in schemas.items()
    )
    return f"<section id=schemas><h2>Schemas</h2>{parts}</section>"


def _fields(schema: Json) -> str:
    if "properties" not in schema:
        return f"<pre>{escape(json.dumps(schema, indent=2))}</pre>"
    required = set(schema.get("required", ()))
    rows = "".join(
        f"<tr><td><code>{escape(name)}</code></td><td>{_type(field)}</td>"
        f"<td>{'required' if name in required else ''}</td></tr>"
        for name, field in schema["properties"].items()
    )
    return f"<table>{rows}</table>"


def _type(schema: Json) -> str:
    """A schema in a few words."""
    if "$ref" in schema:
        name = escape(schema["$ref"].rpartition("/")[2])
        return f'<a href="#schema-{name}">{name}</a>'
    if "anyOf" in schema:
        return " or ".join(_type(one) for one in schema["anyOf"])
    if "enum" in schema:
        return " or ".join(f"<code>{escape(str(one))}</code>" for one in schema["enum"])
    if "prefixItems" in schema:
        return f"list of {', '.join(map(_type, schema['prefixItems']))}"
    if schema.get("type") == "array":
        return f"list of {_type(schema.get('items', {}))}"
    words = [str(schema.get("type", "any JSON"))]
    words += [
        f"{label} {schema[name]}"
        for name, label in (
            ("minimum", "≥"),
            ("maximum", "≤"),
            ("maxLength", "length ≤"),
            ("format", "as"),
            ("pattern", "matching"),
        )
        if name in schema
    ]
    return escape(" ".join(words))


def _prose(text: str) -> str:
    """Plain text with `code` in it, and line by line."""
    parts = escape(text).split("`")
    marked = "".join(
        f"<code>{part}</code>" if index % 2 else part for index, part in enumerate(parts)
    )
    return marked.replace("\n", "<br>")
