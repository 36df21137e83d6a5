"""A small client: `Client(url).adapter("cam-1").classify(paths)`."""

from __future__ import annotations

import io
import os
import secrets
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
from PIL import Image

ImageLike = str | os.PathLike[str] | bytes | Image.Image
PAUSES = (0.2, 1.0, 3.0)  # seconds between attempts


class ServiceError(ValueError):
    """What the service refused; `code` and `status` say why."""

    def __init__(self, message: str, *, status: int, code: str) -> None:
        super().__init__(message)
        self.status, self.code = status, code


@dataclass(frozen=True)
class Answers:
    """Labels per image, best first, and what the request is called."""

    labels: list[list[tuple[str, float]]]
    request_id: str
    step: int
    repeated: bool
    ask: list[int]  # images whose label would help: answer and zero-shot differ

    def __len__(self) -> int:
        return len(self.labels)

    def best(self) -> list[str]:
        """The first label of each image."""
        return [row[0][0] for row in self.labels]


class Client:
    """A service.

    Parameters
    ----------
    url
        Its address, such as "http://127.0.0.1:8000".
    key
        The API key, if the service has one.
    """

    def __init__(
        self,
        url: str,
        *,
        key: str | None = None,
        timeout: float = 60.0,
        http: httpx.Client | None = None,
    ) -> None:
        headers = {} if key is None else {"x-api-key": key}
        self.http = http or httpx.Client(base_url=url, headers=headers, timeout=timeout)

    def adapter(self, name: str) -> RemoteAdapter:
        """An adapter by its id; nothing is sent yet."""
        return RemoteAdapter(self, name)

    def adapters(self) -> list[dict[str, Any]]:
        """All adapters of the service."""
        found: list[dict[str, Any]] = self.send("GET", "/v1/adapters").json()["adapters"]
        return found

    def send(self, method: str, path: str, *, again: bool = True, **options: Any) -> httpx.Response:
        """Send a request, again where the connection failed; ServiceError for a refusal.

        Without `again`, only one that certainly did not arrive is sent a second time.
        """
        lost = httpx.TransportError if again else httpx.ConnectError
        for pause in (*PAUSES, None):
            try:
                answer = self.http.request(method, path, **options)
            except lost:
                if pause is None:
                    raise
            else:
                if answer.status_code not in (429, 503) or pause is None:
                    return checked(answer)
            time.sleep(pause or 0)
        raise AssertionError("unreachable")

    def close(self) -> None:
        self.http.close()

    def __enter__(self) -> Client:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class RemoteAdapter:
    """One adapter of a service."""

    def __init__(self, client: Client, name: str) -> None:
        self.client, self.name = client, name

    def create(
        self,
        classes: Sequence[str],
        *,
        templates: Sequence[str] | None = None,
        method: str | None = None,
        own_encoder: bool = False,
        **settings: Any,
    ) -> dict[str, Any]:
        """Make it; with `own_encoder` it runs the image tower itself."""
        body: dict[str, Any]
        body = {"id": self.name, "classes": list(classes), "method": method, "settings": settings}
        body["own_encoder"] = own_encoder
        body["templates"] = None if templates is None else list(templates)
        made: dict[str, Any] = self.client.send("POST", "/v1/adapters", json=body).json()
        return made

    def classify(
        self,
        images: ImageLike | Sequence[ImageLike],
        *,
        adapt: bool = True,
        top_k: int = 1,
        request_id: str | None = None,
    ) -> Answers:
        """Label images, and learn from them once, however often the connection fails."""
        listed = [images] if isinstance(images, (str, os.PathLike, bytes, Image.Image)) else images
        files = [("files", (f"{i}", to_bytes(image))) for i, image in enumerate(listed)]
        data = {"adapt": str(adapt).lower(), "top_k": str(top_k)}
        data["request_id"] = request_id or secrets.token_hex(12)
        answer = self.client.send("POST", self._path("classify"), files=files, data=data)
        ask = answer.headers.get("x-ask", "")
        return Answers(
            [[(each["label"], each["score"]) for each in row] for row in answer.json()],
            answer.headers["x-request-id"],
            int(answer.headers["x-step"]),
            answer.headers.get("x-repeated") == "true",
            [int(each) for each in ask.split(",") if each],
        )

    def feedback(self, request_id: str, index: int, label: str) -> dict[str, Any]:
        """Tell the true label of an image that was answered."""
        return self._post("feedback", request_id=request_id, index=index, label=label)

    def reset(self) -> dict[str, Any]:
        """Go back to a fresh start."""
        return self._post("reset")

    def rollback(self, step: int) -> dict[str, Any]:
        """Restore the state after an earlier step."""
        return self._post("rollback", step=step)

    def merge(self, other: str) -> dict[str, Any]:
        """Take in what another adapter has learnt; twice would count it twice."""
        path = self._path("merge")
        sent = self.client.send("POST", path, again=False, json={"from": other})
        merged: dict[str, Any] = sent.json()
        return merged

    def describe(self) -> dict[str, Any]:
        """How it was made, what it has learnt, and its alarms."""
        found: dict[str, Any] = self.client.send("GET", self._path()).json()
        return found

    def save(self, path: str | os.PathLike[str]) -> int:
        """Write what was learnt to a file that `Adapter.load` reads; the step."""
        answer = self.client.send("GET", self._path("state"))
        Path(path).write_bytes(answer.content)
        return int(answer.headers["etag"].strip('"'))

    def delete(self) -> None:
        self.client.send("DELETE", self._path())

    def _post(self, verb: str, **body: Any) -> dict[str, Any]:
        done: dict[str, Any] = self.client.send("POST", self._path(verb), json=body).json()
        return done

    def _path(self, verb: str = "") -> str:
        return f"/v1/adapters/{self.name}" + (f"/{verb}" if verb else "")


def to_bytes(image: ImageLike) -> bytes:
    """The bytes of an image file."""
    if isinstance(image, bytes):
        return image
    if isinstance(image, Image.Image):
        file = io.BytesIO()
        image.convert("RGB").save(file, "PNG")
        return file.getvalue()
    return Path(image).read_bytes()


def checked(answer: httpx.Response) -> httpx.Response:
    if answer.is_success:
        return answer
    try:
        about = answer.json()
        message, code = str(about["error"]), str(about["code"])
    except (ValueError, KeyError, TypeError):
        message, code = f"the service answered with status {answer.status_code}", "unknown"
    raise ServiceError(message, status=answer.status_code, code=code)
