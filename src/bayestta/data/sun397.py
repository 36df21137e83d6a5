"""SUN397, a set of the cross-domain benchmark."""

from __future__ import annotations

from bayestta.data._base import register_data
from bayestta.data._coop_split import CoOpData


@register_data("sun397")
class SUN397(CoOpData):
    """SUN397: 397 kinds of scenes, from abbey to zoo.

    Citation: J. Xiao, J. Hays, K. A. Ehinger, A. Oliva, A. Torralba, SUN Database, Large-scale
        Scene Recognition from Abbey to Zoo, 2010
    Licence: none is stated; for research
    Get: SUN397.tar.gz, http://vision.princeton.edu/projects/2010/SUN/SUN397.tar.gz and
        split_zhou_SUN397.json, https://drive.google.com/file/d/1y2RD81BYuiyvebdN-JymPfyWYcd8_MUq
    """

    folders, image_folders = ("sun397", "SUN397"), ("SUN397", "")
    files = ("split_zhou_SUN397.json",)
    class_count, test_images = 397, 19850
