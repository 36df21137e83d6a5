"""EuroSAT, a set of the cross-domain benchmark."""

from __future__ import annotations

from bayestta.data._base import register_data
from bayestta.data._coop_split import CoOpData


@register_data("eurosat")
class EuroSAT(CoOpData):
    """EuroSAT: 10 kinds of land use, seen by the Sentinel-2 satellites.

    Citation: P. Helber, B. Bischke, A. Dengel, D. Borth, EuroSAT, a Novel Dataset and Deep Learning
        Benchmark for Land Use and Land Cover Classification, 2019
    Licence: MIT
    Get: EuroSAT.zip, http://madm.dfki.de/files/sentinel/EuroSAT.zip and split_zhou_EuroSAT.json,
        https://drive.google.com/file/d/1Ip7yaCWFi0eaOFUGga0lUdVi_DDQth1o
    """

    folders, image_folders = ("eurosat",), ("2750", "")
    files = ("split_zhou_EuroSAT.json",)
    template = "a centered satellite photo of {}."
    class_count, test_images = 10, 8100
