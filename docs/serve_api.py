"""Write docs/serve_api.md from the OpenAPI document of the service: python docs/serve_api.py"""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

from bayestta.serve.app import make_app
from bayestta.serve.limits import Limits
from bayestta.serve.reference import to_markdown

HEAD = """# The API of the service

Made from the OpenAPI document by `python docs/serve_api.py`. Every running server has the document
at `/openapi.json` and this page at `/docs`. Fields with a star must be given; `{name}` is the id of
the adapter.

A request that learns may carry an id: `id` or `request_id` in its body, or the header
`X-Request-Id`. It is learnt once, however often it is sent, and its first answer is returned again.
`classify` answers with `[{"label", "score"}]` per image, best first; one input that is no list gets
one list. Its headers are `X-Request-Id`, `X-Step`, `X-Repeated` and `X-Ask`.

"""
TAIL = """
## Refusals

Every refusal is JSON:

```json
{"error": "the request holds 300 images, and the server takes 256: send fewer per request, …",
 "code": "too_many", "fact": "…", "numbers": {"count": 300, "most": 256}, "cure": "…",
 "request_id": "…"}
```

| status | when |
|---|---|
| 400, 415, 422 | the request is wrong |
| 401, 403 | key, host, origin or address |
| 404, 409, 412 | unknown, exists already, changed in between |
| 413, 429 | a limit |
| 503, 507 | the server ends or was taken over; the disk failed and nothing was learnt |
"""


def page() -> str:
    backend: Any = SimpleNamespace()  # no route is called
    return HEAD + to_markdown(make_app(backend, Limits()).openapi()) + TAIL


if __name__ == "__main__":
    Path(__file__).with_suffix(".md").write_text(page(), encoding="utf-8")
