"""`lit` at zero-shot: accuracy and mean confidence on photographs, by kernel, templates and scale.

    python bench/lit.py
    python bench/lit.py --pets FOLDER

The test set of CIFAR-10 (level 1.00 of cifar10-light) and, where given, a folder all/CLASS/image.
Images are encoded once. The first line of each table is the model as it comes, with the seven
templates that the data sets use; the others change one thing.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import torch
from _tables import markdown_table
from torch import Tensor
from torch.nn.functional import normalize

import bayestta as bt
from bayestta.data import Data, stream
from bayestta.models import lit
from bayestta.models._preprocess import Preprocess
from bayestta.models._text import classifier, templates

WIDTHS, SCALES = (4.0, 6.0, 9.0, 12.0), (12.0, 16.0, 18.1, 21.0, 40.0)
PROMPTS = {"names alone": ["{}"], "a photo of a": templates("single"), "seven": templates("seven")}
Text = dict[str, Tensor]


def encode(model: lit.Lit, data: Data, domain: str, limit: int | None) -> tuple[Tensor, Tensor]:
    """Features (n,D) and classes (n,)."""
    z, y = [], []
    for batch in stream(data, model.preprocess, domains=[domain], limit=limit, seed=1):
        with torch.no_grad():
            z.append(model.encode_image(batch.x))
        y.append(batch.y)
    return torch.cat(z), torch.cat(y)


def with_width(model: lit.Lit, width: float) -> lit.TextHead:
    """The text head as another width of the kernel makes it.

    The rows of the regression are recovered from the stored solution, (K + ridge) A V = R V.
    """
    names = model.head.names.double()
    sizes = torch.tensor([len(each) for each in lit.synonyms()])
    ridge = lit.RIDGE * torch.diag(sizes.repeat_interleave(sizes).to(names))
    targets = (lit.kernel(names, names) + ridge) @ model.head.rows.double()
    gram = torch.exp(width * (names @ names.T - 1)) + ridge
    head = lit.TextHead(model.head.names, torch.linalg.solve(gram, targets).float())
    head.forward = lambda e: torch.exp(width * (e @ head.names.T - 1)) @ head.rows  # type: ignore[method-assign]
    return head


def figures(z: Tensor, y: Tensor, text: Tensor, scale: float) -> str:
    p = (scale * z @ text.T).softmax(1)
    right, sure = (p.argmax(1) == y).double().mean(), p.amax(1).mean()
    return f"{100 * float(right):.1f} ({100 * float(sure):.1f})"


def variants(model: lit.Lit, data: Data) -> dict[str, tuple[Tensor, float]]:
    """Prototypes (K,D) and scale by the name of what was changed."""

    def text(prompts: list[str]) -> Tensor:
        return normalize(classifier(model, data.classes, prompts), dim=1)

    usual = text(templates("seven"))
    found = {"as it comes": (usual, lit.SCALE)}
    found |= {f"templates: {key}": (text(value), lit.SCALE) for key, value in PROMPTS.items()}
    own = model.head
    for width in WIDTHS:
        model.head = with_width(model, width)
        found[f"width {width:g}"] = text(templates("seven")), lit.SCALE
        model.head = own
    return found | {f"scale {scale:g}": (usual, scale) for scale in SCALES}


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--pets", type=Path, help="folder all/CLASS/image")
    parser.add_argument("--limit", type=int, help="images per set (default: all)")
    parser.add_argument("--size", type=int, default=lit.SIZE, help="pixels of a side")
    args = parser.parse_args()
    model = bt.load_model("lit")
    model.preprocess = Preprocess(args.size, lit.MEAN, lit.STD)
    sets = {"CIFAR-10": (bt.load_data("cifar10-light", split="test"), "1.00")}
    if args.pets:
        sets["pets"] = bt.load_data("folder", root=args.pets), "all"
    columns, header = [], []
    for name, (data, domain) in sets.items():
        z, y = encode(model, data, domain, args.limit)
        header.append(f"{name}, {len(y):,} images")
        columns.append({key: figures(z, y, *value) for key, value in variants(model, data).items()})
    rows = [[key, *(column[key] for column in columns)] for key in columns[0]]
    print(markdown_table([f"lit, {args.size} px: accuracy (mean confidence)", *header], rows))


if __name__ == "__main__":
    main()
