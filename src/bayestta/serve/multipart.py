"""Files and fields of a multipart/form-data body (RFC 7578) that is in memory already.

A body is within `--max-body-mb` when it comes here, so that it can be split at once; a parser for
streams takes ten times as long, in the one thread that all requests share.
"""

from __future__ import annotations

import re

from bayestta.serve.refusals import Refusal

MOST_FIELDS = 16
HEAD = 4096  # bytes of headers per part
PARAMETER = re.compile(r';\s*([\w*-]+)\s*=\s*(?:"((?:[^"\\]|\\.)*)"|([^;\s]*))')


def parse(body: bytes, content_type: str) -> tuple[list[bytes], dict[str, str]]:
    """The files in their order, and the other fields by their names.

    >>> body = b'--X\\r\\nContent-Disposition: form-data; name="a"\\r\\n\\r\\n1\\r\\n--X--\\r\\n'
    >>> parse(body, "multipart/form-data; boundary=X")
    ([], {'a': '1'})
    """
    boundary = _parameters(content_type).get("boundary", "")
    if not 1 <= len(boundary) <= 70 or not boundary.isascii():
        raise _wrong("the content type names no boundary")
    # the first delimiter has no line break in front of it
    parts = (b"\r\n" + body).split(b"\r\n--" + boundary.encode())
    if len(parts) < 2 or not parts[-1].startswith(b"--"):
        raise _wrong(f"the {len(body):,} bytes do not end with the boundary")
    files: list[bytes] = []
    fields: dict[str, str] = {}
    for part in parts[1:-1]:
        head, found, content = part.partition(b"\r\n\r\n")
        about = _disposition(head) if found and len(head) <= HEAD else {}
        if "name" not in about:
            raise _wrong(f"part {len(files) + len(fields)} has no name")
        if "filename" in about:
            files.append(content)
        else:
            fields[about["name"]] = content.decode("utf-8", "replace")
    if len(fields) > MOST_FIELDS:
        raise _wrong(f"there are {len(fields)} fields, {MOST_FIELDS} at most")
    return files, fields


def _disposition(head: bytes) -> dict[str, str]:
    for line in head.decode("utf-8", "replace").split("\r\n"):
        name, _, value = line.partition(":")
        if name.strip().lower() == "content-disposition":
            return _parameters(value)
    return {}


def _parameters(value: str) -> dict[str, str]:
    """The parameters of a header.

    >>> _parameters('form-data; name="a b"; filename=c.png')
    {'name': 'a b', 'filename': 'c.png'}
    """
    found = PARAMETER.findall(value)
    return {key.lower().rstrip("*"): quoted or plain for key, quoted, plain in found}


def _wrong(fact: str) -> Refusal:
    return Refusal(
        400,
        "multipart",
        f"the body is no multipart/form-data ({fact})",
        "send files as `curl -F files=@photo.jpg` does",
    )
