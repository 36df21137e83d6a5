"""Label image files by a service, and tell it the truth about one of them.

bayestta serve --model lit --store ./store
python examples/serve_client.py photos/*.jpg
"""

from __future__ import annotations

import sys

import bayestta as bt

with bt.Client("http://127.0.0.1:8000") as client:
    adapter = client.adapter("photos")
    if "photos" not in [row["id"] for row in client.adapters()]:
        adapter.create(["cat", "dog", "horse"])
    answers = adapter.classify(sys.argv[1:], top_k=2)
    for path, row in zip(sys.argv[1:], answers.labels, strict=True):
        print(path, *(f"{label} {score:.2f}" for label, score in row))
    for index in answers.ask[:1]:  # where the answer differs from the zero-shot one
        label = input(f"What is {sys.argv[1 + index]}? ")
        print(adapter.feedback(answers.request_id, index, label)["harm"])
