"""What is known of a data set before its files are read, for lists."""

from __future__ import annotations

import re
from dataclasses import dataclass

from bayestta.data._base import Data


@dataclass(frozen=True)
class DataInfo:
    """What `bayestta list data` says of a set; counts are None where the user's files decide."""

    name: str
    title: str
    domains: int | None
    classes: int | None
    citation: str
    licence: str
    get: str


def about(name: str, cls: type[Data]) -> DataInfo:
    """Read a data set's docstring."""
    text = cls.__doc__ or ""

    def field(key: str) -> str:
        found = re.search(rf"^\s*{key}: (.+?)(?=^\s*$|^\s*[A-Z]\w+: |\Z)", text, re.S | re.M)
        if found is None:
            raise ValueError(
                f"data set {name!r} has no line '{key}: ...' in its docstring: add it."
            )
        return " ".join(found[1].split())

    title = " ".join(text.split("\n\n")[0].split())
    domains, classes = (
        len(cls.domain_names) or None,
        len(cls.class_names) or cls.class_count or None,
    )
    return DataInfo(
        name, title, domains, classes, field("Citation"), field("Licence"), field("Get")
    )
