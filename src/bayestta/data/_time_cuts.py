"""Times as people write them, and the cutting of a stream into domains by time."""

from __future__ import annotations

import re
from collections.abc import Sequence
from datetime import date, datetime, timedelta, timezone

import numpy as np
from numpy.typing import NDArray

from bayestta.names import unknown

# Calendar spans and how a domain is named: sorting the names sorts the times.
SPANS = {
    "year": "%Y",
    "month": "%Y-%m",
    "week": "%G-W%V",
    "day": "%Y-%m-%d",
    "hour": "%Y-%m-%dT%H",
}
EPOCH = datetime(1970, 1, 1, tzinfo=timezone.utc)
_NUMBER = re.compile(r"[+-]?\d+(\.\d*)?([eE][+-]?\d+)?", re.ASCII)
_ISO = re.compile(
    r"(?P<year>\d{4})(-?(?P<month>\d\d)(-?(?P<day>\d\d))?)?"
    r"([T ](?P<hour>\d\d)(:?(?P<minute>\d\d)(:?(?P<second>\d\d)([.,](?P<fraction>\d+))?)?)?)?"
    r" ?(Z|UTC|(?P<sign>[+-])(?P<hours>\d\d)(:?(?P<minutes>\d\d))?)?",
    re.ASCII,
)


def read_times(values: Sequence[object]) -> tuple[NDArray[np.float64], dict[int, str]]:
    """Seconds since 1970 in UTC (n,), NaN where a value is no time, and why, by position.

    A value is ISO 8601 (without an offset: UTC), a number of seconds since 1970, or a `datetime`.
    Whole numbers are read as years where all of them have four digits, and as dates (20240501)
    where all have eight and are dates: one reading holds for all values, so order is kept.

    >>> read_times(["1970-01-02", "86400", "1970-01-02T01:00:00+01:00"])[0].tolist()
    [86400.0, 86400.0, 86400.0]
    >>> read_times(["1969", "1971"])[0].tolist()
    [-31536000.0, 31536000.0]
    """
    odd = {i: type(v).__name__ for i, v in enumerate(values) if isinstance(v, (list, dict, tuple))}
    texts = ["" if v is None or i in odd else _text(v) for i, v in enumerate(values)]
    numbers = [text for text in texts if _NUMBER.fullmatch(text)]
    written = _all_dates(numbers, 4) or _all_dates(numbers, 8)
    seconds, wrong = np.full(len(texts), np.nan), {}
    for i, text in enumerate(texts):
        try:
            number = not written and _NUMBER.fullmatch(text)
            seconds[i] = _from_number(text) if number else _from_iso(text)
        except (ValueError, OverflowError) as error:
            wrong[i] = f"time {text[:60]!r} {error}" if text else "has no time"
    return seconds, wrong | {i: f"its time is a {kind}" for i, kind in odd.items()}


def check_cut(cut: int | str) -> int | str:
    """`cut` as a count of at least 1 or the name of a span; a ValueError otherwise."""
    if isinstance(cut, str) and not cut.strip().isdecimal():
        if cut not in SPANS:
            raise ValueError(f"{unknown('cut', cut, SPANS)} Or give a number of domains.")
        return cut
    count = int(cut)
    if isinstance(cut, bool) or count != float(cut) or count < 1:
        raise ValueError(
            f"cut is {cut}: give a number of domains, at least 1, or one of {', '.join(SPANS)}."
        )
    return count


def cut_by_time(seconds: NDArray[np.float64], cut: int | str) -> dict[str, NDArray[np.int64]]:
    """Domains in time order: name -> positions in time order, equal times as they were given.

    Parameters
    ----------
    seconds
        Since 1970, as `read_times` gives them (n,).
    cut
        A number of domains, named 1, 2, ..., whose sizes differ by at most one image; or `year`,
        `month`, `week`, `day` or `hour` of UTC, where spans without an image are no domain.

    >>> {name: rows.tolist() for name, rows in cut_by_time(np.array([9.0, 0, 5, 7]), 2).items()}
    {'1': [1, 2], '2': [3, 0]}
    """
    cut, order = check_cut(cut), np.argsort(seconds, kind="stable")
    if isinstance(cut, int):
        if cut > len(order):
            raise ValueError(
                f"cut is {cut} and there are {len(order)} images: ask for {len(order)} domains "
                "at most."
            )
        return {str(k + 1): part for k, part in enumerate(np.array_split(order, cut))}
    names = [_utc(seconds[i]).strftime(SPANS[cut]) for i in order]
    starts = [i for i, name in enumerate(names) if i == 0 or name != names[i - 1]]
    parts = np.split(order, starts[1:])
    return {names[start]: part for start, part in zip(starts, parts, strict=True)}


def iso(seconds: float) -> str:
    """Seconds since 1970 as ISO 8601, to the second.

    >>> iso(86400.7)
    '1970-01-02T00:00:00Z'
    """
    return _utc(seconds).strftime("%Y-%m-%dT%H:%M:%SZ")


def _utc(seconds: float) -> datetime:
    return EPOCH + timedelta(seconds=float(seconds))  # fromtimestamp fails before 1970 on some


def _text(value: object) -> str:
    written = value.isoformat() if isinstance(value, date) else str(value).strip()
    return written.removesuffix(".0")  # a column of years with a gap comes out of pandas so


def _all_dates(numbers: list[str], digits: int) -> bool:
    if not numbers or any(not text.isdecimal() or len(text) != digits for text in numbers):
        return False
    try:
        return all(_from_iso(text) is not None for text in set(numbers))
    except ValueError:
        return False


def _from_number(text: str) -> float:
    seconds = float(text)
    try:
        _utc(seconds)
    except OverflowError as error:
        raise ValueError(
            "is not within the years 1 to 9999 as seconds since 1970 (divide milliseconds by 1000)"
        ) from error
    return seconds


def _from_iso(text: str) -> float:
    found = _ISO.fullmatch(text)
    if found is None:
        raise ValueError("is neither ISO 8601 nor seconds since 1970")
    first = {"month": "1", "day": "1"}
    given = {key: value or first.get(key, "0") for key, value in found.groupdict().items()}
    part = {key: int(value) for key, value in given.items() if key != "sign"}
    offset = timedelta(hours=part["hours"], minutes=part["minutes"])
    micro = int(given["fraction"][:6].ljust(6, "0"))
    try:
        moment = datetime(
            *(part["year"], part["month"], part["day"]),
            *(part["hour"], part["minute"], part["second"], micro),
            tzinfo=timezone.utc,
        )
    except ValueError as error:
        raise ValueError(f"is no time ({error})") from error
    return (moment - (-offset if found["sign"] == "-" else offset) - EPOCH).total_seconds()
