"""The OpenAPI document as a page to read: for `/docs`, and for the documentation.

FastAPI's own page loads its scripts from elsewhere, which a machine without a network cannot.
"""

from __future__ import annotations

import html
import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from bayestta.report.style import CSS

Json = Mapping[str, Any]
POLICY = "default-src 'none'; style-src 'unsafe-inline'; base-uri 'none'; frame-ancestors 'none'"
STYLE = """
main { max-width: 60rem; }
h2 { margin-top: 2.2rem; }
h3 code { font-size: 0.95rem; overflow-wrap: anywhere; }
th, td { text-align: left; vertical-align: top; white-space: normal; }
td:last-child { min-width: 14rem; }
"""


@dataclass(frozen=True)
class Field:
    """Something that a request may hold."""

    name: str
    kind: str
    place: str
    text: str


@dataclass(frozen=True)
class Operation:
    method: str
    path: str
    group: str
    text: str
    fields: list[Field]


def operations(document: Json) -> list[Operation]:
    """All operations, in the order of their groups."""
    found = []
    for path, methods in document["paths"].items():
        for method, about in methods.items():
            group = (about.get("tags") or ["server"])[0]
            text = about.get("description") or about.get("summary", "")
            fields = [*_parameters(about), *_body(document, about)]
            found.append(Operation(method.upper(), path, group, " ".join(text.split()), fields))
    groups = list(dict.fromkeys(each.group for each in found))
    return sorted(found, key=lambda each: groups.index(each.group))


def _parameters(about: Json) -> Iterator[Field]:
    for each in about.get("parameters", []):
        if each["in"] != "path":  # that is the id of the adapter
            text = each.get("description", "")
            yield Field(each["name"], _kind({}, each["schema"]), each["in"], text)


def _body(document: Json, about: Json) -> Iterator[Field]:
    for media, content in about.get("requestBody", {}).get("content", {}).items():
        place = {"application/json": "JSON", "multipart/form-data": "form"}.get(media, "body")
        yield from _schema(document, content["schema"], place, "")


def _schema(document: Json, schema: Json, place: str, prefix: str) -> Iterator[Field]:
    schema = _resolved(document, schema)
    if "properties" not in schema:
        yield Field("the whole body", _kind(document, schema), place, schema.get("description", ""))
        return
    required = schema.get("required", [])
    for name, part in schema["properties"].items():
        inner = _resolved(document, part)
        if "properties" in inner:
            yield from _schema(document, inner, place, f"{prefix}{name}.")
            continue
        text = inner.get("description") or part.get("description", "")
        if name not in required and part.get("default") is not None:
            text = f"{text} Default: {json.dumps(part['default'])}.".strip()
        name = f"{prefix}{name}" + (" *" if name in required else "")
        yield Field(name, _kind(document, part), place, text)


def _resolved(document: Json, schema: Json) -> Json:
    if "$ref" in schema:
        return dict(document["components"]["schemas"][schema["$ref"].rsplit("/", 1)[1]])
    if len(schema.get("allOf", [])) == 1:
        return _resolved(document, schema["allOf"][0])
    return schema


def _kind(document: Json, schema: Json) -> str:
    """The type in a word or two.

    >>> _kind({}, {"anyOf": [{"type": "string"}, {"type": "null"}]})
    'string'
    """
    schema = _resolved(document, schema)
    if "anyOf" in schema:
        kinds = [_kind(document, each) for each in schema["anyOf"]]
        return " or ".join(kind for kind in kinds if kind != "null")
    if schema.get("type") == "array":
        return f"list of {_kind(document, schema.get('items', {}))}"
    if schema.get("format") == "binary":
        return "file"
    return str(schema.get("title" if "properties" in schema else "type", "any"))


def to_markdown(document: Json) -> str:
    """A section per group, a heading and a table per operation."""
    lines, group = [], ""
    for each in operations(document):
        if each.group != group:
            group = each.group
            lines += [f"## {group[0].upper()}{group[1:]}", ""]
        lines += [f"### `{each.method} {each.path}`", "", each.text, ""]
        if each.fields:
            lines += ["| field | in | type | what it is |", "|---|---|---|---|"]
            for field in each.fields:
                text = field.text.replace("|", "\\|")
                lines.append(f"| `{field.name}` | {field.place} | {field.kind} | {text} |")
            lines.append("")
    return "\n".join(lines)


def to_html(document: Json) -> str:
    """A page that needs nothing from elsewhere."""
    escape = html.escape
    parts, group = [], ""
    for each in operations(document):
        if each.group != group:
            group = each.group
            parts.append(f"<h2>{escape(group[0].upper() + group[1:])}</h2>")
        parts.append(f"<h3><code>{each.method} {escape(each.path)}</code></h3>")
        parts.append(f"<p>{escape(each.text)}</p>")
        if each.fields:
            head = "<tr><th>field</th><th>in</th><th>type</th><th>what it is</th></tr>"
            rows = "".join(
                f"<tr><td><code>{escape(f.name)}</code></td><td>{f.place}</td>"
                f"<td>{escape(f.kind)}</td><td>{escape(f.text)}</td></tr>"
                for f in each.fields
            )
            parts.append(f'<div class="wide"><table>{head}{rows}</table></div>')
    info = document["info"]
    return (
        '<!doctype html><html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f"<title>{escape(info['title'])} API</title><style>{CSS}{STYLE}</style></head><body>"
        f"<header><h1>{escape(info['title'])} API {escape(info['version'])}</h1>"
        f"<p>{escape(info['description'])}</p>"
        '<p>Fields with a star must be given. For machines: <a href="/openapi.json">'
        '/openapi.json</a>. <a href="/">Live page</a>.</p></header>'
        f"<main>{''.join(parts)}</main></body></html>"
    )
