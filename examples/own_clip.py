"""Adapt a CLIP of open_clip that you hold; it stays exactly as it is.

To run offline the script builds a small one with random weights. With real weights it is

    clip, _, preprocess = open_clip.create_model_and_transforms("ViT-B-16", pretrained="openai")
    tokenizer = open_clip.get_tokenizer("ViT-B-16")
"""

from __future__ import annotations

import bayestta as bt  # first, so that open_clip imports beside any build of torchvision

import open_clip  # isort: skip
import torch

torch.manual_seed(0)
clip = open_clip.CLIP(
    embed_dim=64,
    vision_cfg={"image_size": 64, "layers": 2, "width": 64, "patch_size": 16},
    text_cfg={"context_length": 32, "width": 64, "heads": 2, "layers": 2},
)
tokenizer = open_clip.SimpleTokenizer(context_length=32)
preprocess = open_clip.image_transform(64, is_train=False)
weights = {key: value.clone() for key, value in clip.state_dict().items()}

model = bt.wrap(clip, tokenizer, preprocess)  # shares the weights
adapter = bt.BayesTTA(model, ["cat", "dog", "car"])
for _ in range(3):
    images = torch.randn(8, 3, 64, 64)  # your stream; PIL images and paths do as well
    logits = adapter.adapt(images)  # answers, then learns
    print(adapter.probabilities(logits).argmax(1).tolist())

# The owner may go on training: nothing was frozen, switched to evaluation or written to.
assert clip.training
assert all(parameter.requires_grad for parameter in clip.parameters())
assert all(torch.equal(value, clip.state_dict()[key]) for key, value in weights.items())
print(adapter)
