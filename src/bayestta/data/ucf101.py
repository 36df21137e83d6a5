"""UCF101, a set of the cross-domain benchmark."""

from __future__ import annotations

from bayestta.data._base import register_data
from bayestta.data._coop_split import CoOpData


@register_data("ucf101")
class UCF101(CoOpData):
    """UCF101: 101 human actions, the middle frame of every video.

    Citation: K. Soomro, A. R. Zamir, M. Shah, UCF101, a Dataset of 101 Human Actions Classes from
        Videos in the Wild, 2012
    Licence: none is stated
    Get: UCF-101-midframes.zip, https://drive.google.com/file/d/10Jqome3vtUA2keJkNanAiFpgbyC9Hc2O
        and split_zhou_UCF101.json,
        https://drive.google.com/file/d/1I0S0q91hJfsV9Gf4xDIjgDq4AqBNJb1y
    """

    folders, image_folders = ("ucf101", "UCF101"), ("UCF-101-midframes", "")
    files = ("split_zhou_UCF101.json",)
    template = "a photo of a person doing {}."
    class_count, test_images = 101, 3783
