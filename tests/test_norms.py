"""Norm layers are chosen by type, and BatchNorms can take the statistics of the batch."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import nn

from bayestta.models._norms import batch_statistics, norm_layers, norm_parameters
from bayestta.models._torchvision import import_torchvision
from bayestta.models.open_clip import build

import_torchvision()


def tower(name):
    import open_clip

    with torch.device("meta"):
        return build(open_clip.get_model_config(name)).visual


def values(visual, rule):
    return sum(value.numel() for value in norm_parameters(visual, rule).values())


def test_resnet_50_has_55_batch_norms_of_which_51_are_the_released_choice():
    visual = tower("RN50-quickgelu")
    found = norm_layers(visual)
    assert len(found) == 55
    assert all(isinstance(module, nn.BatchNorm2d) for module in found.values())
    released = norm_layers(visual, "released")
    assert set(found) - set(released) == {f"layer{i}.0.downsample.1" for i in (1, 2, 3, 4)}
    assert len(released) == 51
    assert values(visual, "released") == 45_568  # as counted in the released code
    assert values(visual, "all") == 45_568 + 7_680


def test_vit_b_16_has_26_layer_norms_in_the_image_tower():
    visual = tower("ViT-B-16-quickgelu")
    assert len(norm_layers(visual)) == len(norm_layers(visual, "released")) == 26
    assert values(visual, "all") == 39_936


def test_norms_are_chosen_by_type_whatever_their_names():
    class Odd(nn.LayerNorm):
        pass

    layers = {"plain": nn.Linear(4, 4), "a": nn.GroupNorm(2, 4), "b": Odd(4)}
    layers |= {"norm": nn.Linear(4, 4), "c": nn.BatchNorm1d(4), "d": nn.SyncBatchNorm(4)}
    assert list(norm_layers(nn.ModuleDict(layers))) == ["a", "b", "c", "d"]
    assert list(norm_layers(nn.LayerNorm(3))) == [""]
    assert sorted(norm_parameters(nn.LayerNorm(3))) == ["bias", "weight"]
    assert norm_parameters(nn.LayerNorm(3, elementwise_affine=False)) == {}


def test_an_unknown_rule_names_the_valid_ones():
    with pytest.raises(ValueError, match="'release': did you mean 'released'"):
        norm_layers(nn.LayerNorm(3), "release")


def test_parameters_are_float32_copies():
    visual = nn.Sequential(nn.LayerNorm(3)).bfloat16()
    found = norm_parameters(visual)
    found["0.weight"].fill_(5)
    assert found["0.weight"].dtype == torch.float32
    assert not found["0.weight"].requires_grad
    assert visual[0].weight.eq(1).all()


def test_batch_statistics_equal_those_of_training_mode_and_write_nothing(tiny_rn):
    x = torch.randn(4, 3, 64, 64, generator=torch.Generator().manual_seed(0))
    before = copy.deepcopy(tiny_rn.visual.state_dict())
    train = copy.deepcopy(tiny_rn.visual).train()
    want = nn.functional.normalize(train(x), dim=1)
    got = tiny_rn.encode_image(x, norms="batch")
    torch.testing.assert_close(got, want, atol=1e-6, rtol=0)
    assert not torch.allclose(got, tiny_rn.encode_image(x), atol=1e-2)
    assert not tiny_rn.visual.training
    after = tiny_rn.visual.state_dict()
    assert all(torch.equal(before[key], after[key]) for key in before)
    assert len(batch_statistics(tiny_rn.visual)) == 2 * len(norm_layers(tiny_rn.visual))


def test_batch_statistics_leave_a_layer_norm_tower_alone(tiny_vit):
    x = torch.randn(2, 3, 32, 32, generator=torch.Generator().manual_seed(0))
    assert batch_statistics(tiny_vit.visual) == {}
    assert torch.equal(tiny_vit.encode_image(x, norms="batch"), tiny_vit.encode_image(x))
