"""Images -> the normalised tensors that an image tower takes."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from PIL import Image
from torch import Tensor
from torch.nn import functional

from bayestta.names import unknown

CLIP_MEAN = (0.48145466, 0.4578275, 0.40821073)
CLIP_STD = (0.26862954, 0.26130258, 0.27577711)
FILTERS = {"bicubic": Image.Resampling.BICUBIC, "bilinear": Image.Resampling.BILINEAR}
EXTREME = 8  # from this aspect ratio on, the crop is resized instead of the image


@dataclass(frozen=True)
class Preprocess:
    """PIL image -> normalised tensor (C,H,W): resize the short side, crop the centre.

    `batch` does the same to uint8 pixels (B,H,W,C) at once, within 2 grey levels of Pillow.

    Parameters
    ----------
    size
        Height and width of the result.
    mean, std
        One number per channel, in units of the full range.
    squash
        Resize both sides to `size` instead, whatever that does to the proportions.
    interpolation
        `bicubic` or `bilinear`, antialiased.

    >>> Preprocess(32)(Image.new("RGB", (100, 50))).shape
    torch.Size([3, 32, 32])
    """

    size: int
    mean: tuple[float, ...] = CLIP_MEAN
    std: tuple[float, ...] = CLIP_STD
    squash: bool = False
    interpolation: str = "bicubic"

    def __post_init__(self) -> None:
        if self.interpolation not in FILTERS:
            raise ValueError(unknown("interpolation", self.interpolation, FILTERS))

    def __call__(self, image: Image.Image) -> Tensor:
        return self.normalise(self.levels(image)[None])[0]

    def levels(self, image: Image.Image) -> Tensor:
        """The uint8 pixels (C,size,size) that `normalise` makes the tensor of."""
        if image.mode != "RGB":
            from bayestta.images import to_rgb  # deep and transparent images read right

            image = to_rgb(image)
        if self._extreme(image.height, image.width):
            image = self._resize_centre(image)
        else:
            height, width = self._resized(image.height, image.width)
            image = image.resize((width, height), FILTERS[self.interpolation])
        pixels = torch.frombuffer(bytearray(image.tobytes()), dtype=torch.uint8)
        pixels = pixels.view(1, image.height, image.width, 3)
        return self._crop(pixels.permute(0, 3, 1, 2))[0]

    def _resize_centre(self, image: Image.Image) -> Image.Image:
        """What a crop of the resized image would be, which may not fit into memory itself.

        Pillow looks beyond the box for the pixels that its filter needs there, and resizes columns
        before rows: asked for one after the other it gives the same result.
        """
        size, (height, width) = self.size, (image.height, image.width)
        high, wide = self._resized(height, width)
        top, left = self._corner(high, wide)
        x, y = width / wide, height / high
        across = (left * x, 0, min((left + size) * x, width), height)
        image = image.resize((size, height), FILTERS[self.interpolation], box=across)
        down = (0, top * y, size, min((top + size) * y, height))
        return image.resize((size, size), FILTERS[self.interpolation], box=down)

    def batch(self, pixels: Tensor) -> Tensor:
        """uint8 pixels (B,H,W,3) -> (B,3,size,size)."""
        return self.normalise(self.batch_levels(pixels))

    def batch_levels(self, pixels: Tensor) -> Tensor:
        """`levels` of many: (B,H,W,3) -> (B,3,size,size), bytes on a CPU."""
        if len(pixels) and self._extreme(pixels.shape[1], pixels.shape[2]):
            images = (Image.fromarray(image.cpu().numpy()) for image in pixels)
            return torch.stack([self.levels(image) for image in images])
        x = pixels.permute(0, 3, 1, 2)
        return self._crop(self._resize(x, self._resized(x.shape[2], x.shape[3])))

    def normalise(self, levels: Tensor) -> Tensor:
        """Grey levels (B,C,H,W), 0 to 255 -> what the tower takes."""
        x = levels.contiguous() / 255  # a copy, in which the rest takes place
        mean = torch.tensor(self.mean, device=x.device).view(-1, 1, 1)
        std = torch.tensor(self.std, device=x.device).view(-1, 1, 1)
        return x.sub_(mean).div_(std)

    def _resize(self, x: Tensor, size: tuple[int, int]) -> Tensor:
        """Grey levels (B,C,H,W) as Pillow resizes them: columns, rounded, then rows."""
        if size == tuple(x.shape[2:]):
            return x
        if x.dtype == torch.uint8 and x.device.type == "cpu":
            return functional.interpolate(x, size, mode=self.interpolation, antialias=True)
        x = x.float()  # other devices have no kernel for bytes
        for step in ((x.shape[2], size[1]), size):
            x = functional.interpolate(x, step, mode=self.interpolation, antialias=True)
            x = x.round().clamp(0, 255)
        return x

    def _resized(self, height: int, width: int) -> tuple[int, int]:
        if self.squash:
            return self.size, self.size
        short = min(height, width)
        return int(self.size * height / short), int(self.size * width / short)

    def _extreme(self, height: int, width: int) -> bool:
        return not self.squash and max(height, width) >= EXTREME * min(height, width)

    def _corner(self, height: int, width: int) -> tuple[int, int]:
        return round((height - self.size) / 2), round((width - self.size) / 2)

    def _crop(self, x: Tensor) -> Tensor:
        """The centre (B,C,size,size) of grey levels (B,C,H,W)."""
        top, left = self._corner(x.shape[2], x.shape[3])
        return x[:, :, top : top + self.size, left : left + self.size]
