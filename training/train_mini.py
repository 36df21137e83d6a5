"""Train an embedded mini model: `python training/train_mini.py mini-rn`; run again to go on where
it stopped.

Image-caption pairs of the CIFAR-10 and MNIST train splits, without their last 5,000 images, upright
and in normal light (random crop, and for CIFAR-10 a mirror). The loss is contrastive in both
directions with all pairs of one class as positives. At the end the logit scale is fitted to the
held-out images and the weights are written in float16.
"""

from __future__ import annotations

import argparse
import json
import math
import time
from dataclasses import asdict, dataclass
from pathlib import Path

import torch
from torch import Tensor, nn
from torch.nn import functional

from bayestta.data import _sources as sources
from bayestta.models import mini
from bayestta.models._text import TEMPLATES
from captions import SYNONYMS, UNSEEN, captions

HELD_OUT = 5000
MEAN = torch.tensor([0.48145466, 0.4578275, 0.40821073]).view(1, 3, 1, 1)
STD = torch.tensor([0.26862954, 0.26130258, 0.27577711]).view(1, 3, 1, 1)
TEXT_RATE = 1e-3
DECAY = 0.05


@dataclass(frozen=True)
class Recipe:
    """A cosine of `horizon` epochs that turns into a straight line to zero after `turn` of them."""

    epochs: int
    turn: int
    horizon: int
    peak: float  # learning rate of the image tower
    batch: int
    digits: tuple[int, int] = (8_000, 8_000)  # MNIST images per epoch, before and after the turn

    def rate(self, epoch: float) -> float:
        warm = min(1.0, 2 * epoch)  # half an epoch
        at_turn = 0.5 + 0.5 * math.cos(math.pi * self.turn / self.horizon)
        if epoch >= self.turn:
            return at_turn * (self.epochs - epoch) / (self.epochs - self.turn)
        return warm * (0.5 + 0.5 * math.cos(math.pi * epoch / self.horizon))


RECIPES = {
    "mini-rn": Recipe(epochs=12, turn=10, horizon=18, peak=2e-3, batch=128),
    "mini-vit": Recipe(epochs=8, turn=5, horizon=10, peak=1e-3, batch=64, digits=(8_000, 20_000)),
}


def load() -> dict[str, tuple[Tensor, Tensor]]:
    """name -> uint8 images (N,3,H,W) and labels; digits are classes 10 to 19."""
    found = {}
    for name, shift in (("cifar10", 0), ("mnist", 10)):
        raw = {k: torch.from_numpy(v.copy()) for k, v in sources.arrays(name).items()}
        for split in ("train", "test"):
            x = raw[f"{split}_x"]
            x = (
                x.permute(0, 3, 1, 2).contiguous()
                if x.ndim == 4
                else x[:, None].expand(-1, 3, -1, -1)
            )
            y = raw[f"{split}_y"].long() + shift
            if split == "train":
                found[f"{name}/train"] = (x[:-HELD_OUT], y[:-HELD_OUT])
                found[f"{name}/held-out"] = (x[-HELD_OUT:], y[-HELD_OUT:])
            else:
                found[f"{name}/test"] = (x, y)
    return found


def pixels(x: Tensor, size: int) -> Tensor:
    """uint8 (B,3,h,w) -> normalised (B,3,size,size), resampled as Pillow's bicubic filter does."""
    x = (
        functional.interpolate(x.float(), (size, size), mode="bicubic", antialias=True)
        .round_()
        .clamp_(0, 255)
        / 255
    )
    return (x - MEAN) / STD


def crop(x: Tensor, mirror: bool, generator: torch.Generator) -> Tensor:
    """A random shift of up to an eighth of the side, and a mirror image for half of the batch."""
    side = x.shape[-1]
    pad = side // 8
    padded = functional.pad(x, (pad,) * 4)
    rows = torch.randint(0, 2 * pad + 1, (len(x), 1), generator=generator) + torch.arange(side)
    cols = torch.randint(0, 2 * pad + 1, (len(x), 1), generator=generator) + torch.arange(side)
    if mirror:
        flip = torch.rand(len(x), 1, generator=generator) < 0.5
        cols = torch.where(flip, cols.flip(1), cols)
    batch = torch.arange(len(x))[:, None, None]
    return padded.permute(0, 2, 3, 1)[batch, rows[:, :, None], cols[:, None, :]].permute(0, 3, 1, 2)


def contrast(logits: Tensor, same: Tensor) -> Tensor:
    """Cross-entropy against all pairs of one class, over images and over captions."""
    positive = same.float()
    by_image = -(logits.log_softmax(1) * positive).sum(1) / positive.sum(1)
    seen = positive.sum(0) > 0
    by_text = -(logits.log_softmax(0) * positive).sum(0)[seen] / positive.sum(0)[seen]
    return by_image.mean() + by_text.mean()


@torch.no_grad()
def features(model: nn.Module, x: Tensor, size: int) -> Tensor:
    model.eval()
    return torch.cat(
        [model.encode_image(pixels(part, size), normalize=True) for part in x.split(500)]
    )


@torch.no_grad()
def prototypes(model: nn.Module, tokenizer, names: list[str], templates: list[str]) -> Tensor:
    model.eval()
    text = [
        model.encode_text(tokenizer([t.format(n) for t in templates]), normalize=True).mean(0)
        for n in names
    ]
    return functional.normalize(torch.stack(text), dim=1)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("name", choices=sorted(RECIPES))
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--folder", type=Path, default=sources.cache_root() / "training")
    parser.add_argument(
        "--out", type=Path, help="weight file to write (default: the package's assets)"
    )
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    recipe = RECIPES[args.name]
    batch = recipe.batch
    size = mini.CONFIGS[args.name]["vision_cfg"]["image_size"]

    torch.manual_seed(args.seed)
    model = mini.build(args.name)
    if args.name == "mini-rn":
        model.visual.to(memory_format=torch.channels_last)
    from open_clip import SimpleTokenizer

    tokenizer = SimpleTokenizer(
        context_length=mini.CONFIGS[args.name]["text_cfg"]["context_length"]
    )
    tokens = [tokenizer(group) for group in captions()]
    groups = [
        {
            "params": [
                p
                for n, p in model.named_parameters()
                if n.startswith("visual.") == image and (p.ndim > 1) == matrix
            ],
            "peak": recipe.peak if image else TEXT_RATE,
            "weight_decay": DECAY if matrix else 0.0,
        }
        for image in (True, False)
        for matrix in (True, False)
    ]
    optimiser = torch.optim.AdamW(groups)
    data = load()
    (cx, cy), (mx, my) = data["cifar10/train"], data["mnist/train"]

    args.folder.mkdir(parents=True, exist_ok=True)
    checkpoint = args.folder / f"{args.name}.pt"
    start, seconds = 0, 0.0
    if checkpoint.exists():
        saved = torch.load(checkpoint, weights_only=True)
        model.load_state_dict(saved["model"])
        optimiser.load_state_dict(saved["optimiser"])
        start, seconds = saved["epoch"], saved["seconds"]

    for epoch in range(start, recipe.epochs):
        began, total = time.time(), 0.0
        digits = recipe.digits[epoch >= recipe.turn]
        steps = (len(cx) + digits) // batch
        generator = torch.Generator().manual_seed(1000 * args.seed + epoch)
        chosen = torch.randperm(len(mx), generator=generator)[:digits]
        order = torch.randperm(len(cx) + digits, generator=generator)
        model.train()
        for step in range(steps):
            rate = recipe.rate(epoch + step / steps)
            for group in optimiser.param_groups:
                group["lr"] = rate * group["peak"]
            index = order[step * batch : (step + 1) * batch]
            natural, digit = index[index < len(cx)], chosen[index[index >= len(cx)] - len(cx)]
            x = torch.cat(
                [
                    pixels(crop(cx[natural], True, generator), size),
                    pixels(crop(mx[digit], False, generator), size),
                ]
            )
            y = torch.cat([cy[natural], my[digit]])
            picked = [t[torch.randint(len(t), (2,), generator=generator)] for t in tokens]
            text = model.encode_text(torch.cat(picked), normalize=True)
            label = torch.arange(len(tokens)).repeat_interleave(2)
            if args.name == "mini-rn":
                x = x.contiguous(memory_format=torch.channels_last)
            logits = model.logit_scale.exp() * model.encode_image(x, normalize=True) @ text.T
            loss = contrast(logits, y[:, None] == label)
            optimiser.zero_grad(set_to_none=True)
            loss.backward()
            nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimiser.step()
            with torch.no_grad():
                model.logit_scale.clamp_(0, math.log(100))
            total += loss.item()
        seconds += time.time() - began
        names = [names[0] for names in SYNONYMS]
        text = prototypes(model, tokenizer, names, ["a photo of a {}."])
        held = []
        for name in ("cifar10", "mnist"):
            x, y = data[f"{name}/held-out"]
            guess = features(model, x[:2000], size) @ text[: 10 if name == "cifar10" else 20].T
            if name == "mnist":
                guess[:, :10] = -9
            held.append(100 * (guess.argmax(1) == y[:2000]).float().mean().item())
        print(
            f"{args.name} epoch {epoch + 1}/{recipe.epochs} loss {total / steps:.3f} "
            f"scale {model.logit_scale.exp():.1f} held-out cifar10 {held[0]:.1f} "
            f"mnist {held[1]:.1f} {seconds:.0f} s",
            flush=True,
        )
        saved = {
            "model": model.state_dict(),
            "optimiser": optimiser.state_dict(),
            "epoch": epoch + 1,
            "seconds": seconds,
        }
        torch.save(saved, checkpoint.with_suffix(".tmp"))
        checkpoint.with_suffix(".tmp").replace(checkpoint)
    finish(
        model,
        tokenizer,
        tokens,
        data,
        args.name,
        args.out or mini.ASSETS / f"{args.name}.safetensors",
        seconds,
    )


@torch.no_grad()
def finish(model, tokenizer, tokens, data, name: str, out: Path, seconds: float) -> None:
    """Fit the logit scale to the held-out images, measure on the test splits and write the weight
    file."""
    size = mini.CONFIGS[name]["vision_cfg"]["image_size"]
    names = [group[0] for group in SYNONYMS]
    groups = {"cifar10": slice(0, 10), "mnist": slice(10, 20)}
    text = prototypes(model, tokenizer, names, TEMPLATES["seven"])
    cosines = {
        k: (
            features(model, data[f"{k}/held-out"][0], size) @ text[g].T,
            data[f"{k}/held-out"][1] - g.start,
        )
        for k, g in groups.items()
    }
    scales = torch.logspace(0.3, 2, 200)
    loss = [
        sum(functional.cross_entropy(s * c, y).item() for c, y in cosines.values()) for s in scales
    ]
    model.logit_scale.fill_(scales[int(torch.tensor(loss).argmin())].log())
    about = {
        "name": name,
        "seconds": round(seconds),
        "recipe": asdict(RECIPES[name]),
        "scale": round(model.logit_scale.exp().item(), 2),
    }
    for key, group in groups.items():
        z, y = features(model, data[f"{key}/test"][0], size), data[f"{key}/test"][1] - group.start
        for title, given in (
            ("seven templates", TEMPLATES["seven"]),
            ("single", TEMPLATES["single"]),
            ("unseen prompts", UNSEEN),
        ):
            guess = (z @ prototypes(model, tokenizer, names[group], given).T).argmax(1)
            about[f"{key} test, {title}"] = round(100 * (guess == y).float().mean().item(), 2)
    used = torch.cat(tokens).unique()
    mini.save_weights(model.state_dict(), used, out, about)
    print(json.dumps(about, indent=1), f"{out.stat().st_size / 1e6:.2f} MB", sep="\n")


if __name__ == "__main__":
    main()
