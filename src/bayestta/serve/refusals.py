"""A refusal: the fact, its numbers, and what to do about it."""

from __future__ import annotations

from typing import Any


class Refusal(Exception):  # noqa: N818 - a refusal is an answer too
    """What the service says instead of an answer; becomes a JSON error.

    >>> refusal = Refusal(404, "adapter_unknown", "there is no adapter 'a'", "create it first")
    >>> refusal.to_json()["error"]
    "there is no adapter 'a': create it first."
    """

    def __init__(self, status: int, code: str, fact: str, cure: str, **numbers: Any) -> None:
        super().__init__(status, code, fact, cure, numbers)
        self.status, self.code, self.fact, self.cure = status, code, fact, cure
        self.numbers = numbers

    def __reduce__(self) -> Any:  # a refusal travels between the processes of a cluster
        return _again, (self.status, self.code, self.fact, self.cure, self.numbers)

    def __str__(self) -> str:
        return f"{self.fact}: {self.cure}."

    def to_json(self, request_id: str = "") -> dict[str, Any]:
        """`error` is the whole sentence, as the Open Inference Protocol wants it."""
        about = {"code": self.code, "fact": self.fact, "numbers": self.numbers, "cure": self.cure}
        return {"error": str(self), **about, "request_id": request_id}


def _again(status: int, code: str, fact: str, cure: str, numbers: dict[str, Any]) -> Refusal:
    return Refusal(status, code, fact, cure, **numbers)


def from_value_error(error: ValueError) -> Refusal:
    """An error of the library, whose sentence already states fact and cure."""
    fact, _, cure = str(error).rstrip(".").partition(": ")
    return Refusal(400, "invalid", fact, cure or "check the request against /docs")


class Fenced(Refusal):
    """Another writer has taken over this adapter."""

    def __init__(self, name: str, mine: int, theirs: int) -> None:
        super().__init__(
            503,
            "fenced",
            f"adapter {name!r} was taken over by a writer of epoch {theirs}, this one has {mine}",
            "send the request again",
            epoch=mine,
            newer_epoch=theirs,
        )
        self.name = name

    def __reduce__(self) -> Any:
        return Fenced, (self.name, self.numbers["epoch"], self.numbers["newer_epoch"])
