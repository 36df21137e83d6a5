"""A group of runs as lines of a CSV: one for each row and domain, and for each round."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from bayestta.evaluation.result import Result
from bayestta.report.confusion import matrices, worst
from bayestta.report.groups import Group, Row, Value
from bayestta.report.paper import Paper, Reported
from bayestta.report.reported import find

COLUMNS = (
    *("data", "model", "method", "label", "seeds", "domain", "images"),
    *("accuracy", "accuracy_std", "difference", "ece", "nll", "brier", "seconds"),
    *("batch_size", "round", "then", "now", "reported", "reported_difference", "confusions"),
)


def lines(g: Group, paper: Paper | None = None) -> Iterator[dict[str, object]]:
    """The line of the whole stream has no domain; `ece` is a fraction, as in the JSON."""
    for row in g.rows:
        name: dict[str, object] = {"data": g.data, "model": g.model, "method": row.method}
        name |= {"label": row.label, "seeds": " ".join(map(str, row.seeds))}
        name["batch_size"] = row.runs[0].batch_size
        told, found = find(row, g, paper), matrices(row)
        for domain in [*g.domains, None]:
            line = {**name, **_measured(row, domain, g.reference), **_reported(row, domain, told)}
            if domain in found:
                line["confusions"] = ", ".join(worst(found[domain], row.runs[0].classes))
            yield line
        for line in _rounds(row):
            yield {**name, **line}


def _measured(row: Row, domain: str | None, reference: Row | None) -> dict[str, object]:
    def mean(key: str) -> float | None:
        found = row.value(lambda r: getattr(r, key)) if domain is None else row.domain(domain, key)
        return None if found is None else found.mean

    accuracy = row.value(lambda r: r.accuracy) if domain is None else row.domain(domain)
    images = mean("n")
    known: dict[str, object] = {key: mean(key) for key in ("ece", "nll", "brier")}
    known |= {"domain": domain or "", "images": None if images is None else round(images)}
    known |= {"accuracy": accuracy and accuracy.mean, "accuracy_std": accuracy and accuracy.std}
    if domain is None:
        seconds = row.value(lambda r: r.seconds.get("total"))
        known["seconds"] = seconds and seconds.mean
        difference = row.difference(reference) if reference and reference is not row else None
        known["difference"] = difference and difference.mean
        return known
    for key in ("then", "now"):
        value = row.value(lambda run, k=key: _looked_back(run, domain, k))  # type: ignore[misc]
        known[key] = value and value.mean
    return known


def _looked_back(run: Result, domain: str, key: str) -> float | None:
    return next((e[key] for e in run.forgetting if e["domain"] == domain), None)


def _reported(row: Row, domain: str | None, told: Reported | None) -> dict[str, object]:
    if told is None:
        return {}
    number = told.average if domain is None else told.domains.get(domain)
    mine = row.value(lambda r: r.accuracy) if domain is None else row.domain(domain)
    if number is None or mine is None:
        return {}
    return {"reported": number, "reported_difference": mine.mean - number}


def _rounds(row: Row) -> Iterator[dict[str, object]]:
    """A line for each domain of each round, and one for the round."""
    for i, turn in enumerate(row.runs[0].rounds):
        turns: list[dict[str, Any]] = [r.rounds[i] for r in row.runs if i < len(r.rounds)]
        for domain in [*(d["name"] for d in turn["domains"]), None]:
            entries = [_entry(one, domain) for one in turns]
            value = Value.of([e["accuracy"] for e in entries if e is not None])
            if value is not None:
                yield {
                    "round": turn["round"],
                    "domain": domain or "",
                    "images": (_entry(turn, domain) or {}).get("n"),
                    "accuracy": value.mean,
                    "accuracy_std": value.std,
                }


def _entry(turn: dict[str, Any], domain: str | None) -> dict[str, Any] | None:
    if domain is None:
        return turn
    return next((d for d in turn["domains"] if d["name"] == domain), None)
