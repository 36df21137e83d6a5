"""A griffe extension: doctests that stand at the end of a docstring become its section Examples."""

from __future__ import annotations

import re
from typing import Any

from griffe import Extension, Object


class ExampleSections(Extension):
    """Our docstrings go from the parameters to `>>>` without a heading, which numpydoc asks for."""

    def on_object(self, *, obj: Object, **kwargs: Any) -> None:
        doc = obj.docstring
        if doc is not None and "Examples\n---" not in doc.value:
            heading = "Examples\n--------\n>>> "
            doc.value = re.sub(r"^>>> ", heading, doc.value, count=1, flags=re.M)
