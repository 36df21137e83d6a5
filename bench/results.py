"""docs/results.md from the folders that `bayestta bench` filled.

    python bench/results.py runs > docs/results.md
    python bench/results.py runs --into docs/results.md --only safety guard lit

One section per bench file, with the command that made it; nothing in the tables is written by hand.
A folder that is not there is left out, and a run that is missing from one is counted. Scripts that
print a table themselves are saved as text: `python bench/NAME.py | tee runs/NAME.txt`. With
`--into`, named sections take the place of those that a page has; the others stay as they are.
"""

from __future__ import annotations

import argparse
import re
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import calibration
import guard
import held_out
import safety
import sections
import table
from _tables import HERE

from bayestta.bench import read_bench
from bayestta.evaluation.result import Result

Make = Callable[[Sequence[Result]], str]


def overview(results: Sequence[Result]) -> str:
    return f"{table.table(results)}\n\n{sections.full(results)}"


SECTIONS: dict[str, tuple[str, str, Make]] = {
    "readme": (
        "The default against zero-shot and the two published forms",
        "1,000 images per domain. The worst domain is the one that loses most against zero-shot. "
        "The released form gets its alpha chosen on the reported stream.",
        overview,
    ),
    "embedded": (
        "All methods",
        "512 images per domain. Methods of many forwards per image (CoTTA, WATT, TPT, DynaPrompt) "
        "were measured with version 0.1, on 128 images per domain, and are on "
        "[a page of their own](results_0.1.md): their code has not changed since. Methods that "
        "need gradients through the text tower (CoOp, TPT, AdaPrompt, DynaPrompt, HisTPT) do not "
        "run on lit, whose text tower has none. CoOp's context was learnt on 16 labelled images "
        "per class of the unshifted domain of the held-out split: it is the only supervised row. "
        "The first table compares BayesTTA with the best other method on each stream, CoOp aside.",
        sections.ranked,
    ),
    "embedded_slow": (
        "Methods of many forwards per image",
        "128 images per domain.",
        sections.ranked,
    ),
    "pets": (
        "Pets",
        "37 classes, one domain, on features of lit that are made once; BayesTTA can only use the "
        "statistics of features there. Seeds are orders of the images.",
        sections.ranked,
    ),
    "full_length": (
        "Full-length streams",
        "All 10,000 test images in every domain: `cifar10-light` without a limit, `rmnist` with "
        "`--option turn=all`.",
        sections.ranked,
    ),
    "safety": (
        "Never worse than zero-shot",
        "Gain over zero-shot on the same images in points, in brackets that of the worst domain; "
        "300 images per domain, seed 5.",
        safety.table,
    ),
    "safety_held_out": (
        "Never worse, held-out",
        "As above, on held-out streams and seeds on which no rule was chosen.",
        safety.table,
    ),
    "noise_held_out": (
        "Noise under skewed labels, held-out",
        "What the rules that refuse statistics of the stream were chosen on.",
        safety.table,
    ),
    "tail": (
        "Expected tail accuracy",
        "The mean of the worst tenth of 100 orders of the same images, on cached features.",
        sections.tails,
    ),
    "batch_size": (
        "Batch size",
        "Accuracy, and the gain over zero-shot in brackets. 256 images per domain on lit, 1,000 "
        "on mini-rn.",
        sections.batch_size,
    ),
    "long_term": (
        "Three rounds",
        "One state through all domains three times. Forgotten: accuracy when a domain was last "
        "adapted to, less that of `predict` on the same images at the end; mean over all domains "
        "but the last.",
        sections.long_term,
    ),
    "controls": ("Other orders", "", sections.controls),
    "guard": (
        "The guard under stress",
        "Refinement at 100 and 1,000 times its rate, and a covariance per class by force. First: "
        "images until the guard, or refinement by itself, first stepped back.",
        guard.table,
    ),
    "held_out": (
        "How the default was chosen: held-out streams",
        "Images of no reported stream. Points above zero-shot on the same images.",
        held_out.tables,
    ),
    "ablation": (
        "What the parts are worth",
        "Rows as defined in docs/method.md.",
        sections.by_name,
    ),
    "sensitivity": (
        "Memory, doubt, alpha",
        "One is varied, the others as by default.",
        sections.sensitivity,
    ),
    "efficiency": (
        "Accuracy against time",
        "One process at a time. Methods of many forwards per image are in the section on all "
        "methods; benchmarks/methods.py counts forwards.",
        sections.efficiency,
    ),
    "tent_collapse": (
        "TENT-continual, and where it collapses",
        "Batches of 16, so more than 500 steps. Ten classes: 10 % is one answer for everything.",
        sections.collapse,
    ),
}
TEXTS = {  # scripts that print their table: the title, and the command
    "lit": ("`lit` at zero-shot", "python bench/lit.py --pets FOLDER"),
    "rho": ("Statistics of the tower, held-out", "python bench/rho.py"),
    "shift": ("Shift of BatchNorms, held-out", "python bench/shift.py"),
    "spectrum": ("What restored pixels are worth, held-out", "python bench/spectrum.py"),
    "sorted_folder": ("A folder sorted by class", "python bench/sorted_folder.py"),
    "monitors": ("The drift alarm and the harm test", "python bench/monitors.py"),
    "many_classes": ("A thousand classes", "python bench/many_classes.py"),
    "step": ("Cost of a step", "python benchmarks/step.py"),
}


PREFACE = (
    "# Results\n\nMeasured on two CPU cores without a GPU, seeds as shown, accuracy in % (mean ± "
    "sample deviation over seeds). Written by `python bench/results.py runs` from the folders that "
    "`bayestta bench` fills and from what scripts print. Except under accuracy against time, "
    "seconds were taken while other programs ran, and say little; [speed.md](speed.md) has ratios "
    "measured in one run. The tables of version 0.1, all its methods among them, are on [a page of "
    "their own](results_0.1.md).\n"
)


def section(folder: Path, title: str, about: str, make: Make) -> str:
    wanted = read_bench(HERE / f"{folder.name}.toml")
    there = [run for run in wanted if (folder / run.file).exists()]
    text = make([Result.load(folder / run.file) for run in there])
    missing = len(wanted) - len(there)
    note = f" {missing} of {len(wanted)} runs of the file were not carried out." * bool(missing)
    made = f"Made by `bayestta bench bench/{folder.name}.toml`.{note}"
    return f"## {title}\n\n{' '.join(filter(None, [about, made]))}\n\n{text}\n"


def printed(path: Path, title: str, command: str) -> str:
    """What a script printed: a table as it is, lines as they were."""
    text = path.read_text("utf-8").strip()
    body = text if text.startswith("|") else f"```\n{text}\n```"
    return f"## {title}\n\nMade by `{command}`.\n\n{body}\n"


def made(folder: Path) -> Iterator[tuple[str, str]]:
    """Name and text of every section that there are results for, in the order of the page."""
    for key, (title, about, make) in SECTIONS.items():
        plan = HERE / f"{key}.toml"
        if any((folder / key / run.file).exists() for run in read_bench(plan)):
            yield key, section(folder / key, title, about, make)
    if found := calibration.tables(folder, skip=("tent_collapse",)):
        about = "ECE in points. Made by `python bench/calibration.py runs` from all folders above."
        title = "Calibration, and accuracy estimated without labels"
        yield "calibration", f"## {title}\n\n{about}\n\n{found}\n"
    for key, (title, command) in TEXTS.items():
        if (folder / f"{key}.txt").exists():
            yield key, printed(folder / f"{key}.txt", title, command)


def replaced(page: str, text: str) -> str:
    """The page with one of its sections in this text; at its end if the page has none."""
    parts = re.split(r"(?m)^(?=## )", page)
    titles = [part.partition("\n")[0] for part in parts]
    title = text.partition("\n")[0]
    if title not in titles:
        return f"{page.rstrip()}\n\n{text}"
    i = titles.index(title)
    last = i + 1 == len(parts)
    return "".join([*parts[:i], text if last else f"{text}\n", *parts[i + 1 :]])


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("folder", type=Path, nargs="?", default=Path("runs"))
    parser.add_argument("--into", type=Path, metavar="PAGE", help="page whose sections to replace")
    parser.add_argument("--only", nargs="+", metavar="NAME", help="sections (default: all found)")
    given = parser.parse_args()
    texts = dict(made(given.folder))
    names = given.only or list(texts)
    if missing := [name for name in names if name not in texts]:
        there = ", ".join(texts) or "none"
        parser.error(f"no results for {', '.join(missing)} in {given.folder}; there are {there}.")
    if given.into is None:
        print("\n".join([PREFACE, *(texts[name] for name in names)]))
        return
    page = given.into.read_text("utf-8")
    for name in names:
        page = replaced(page, texts[name])
    given.into.write_text(page, "utf-8")


if __name__ == "__main__":
    main()
