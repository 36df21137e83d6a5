"""The ten sets of the cross-domain benchmark, as CoOp (Zhou et al., 2022) splits them."""

from __future__ import annotations

from bayestta.data._base import register_data
from bayestta.data._coop_split import CoOpData, CoOpSet, read_variants

DRIVE = "https://drive.google.com/file/d/"
OXFORD = "https://www.robots.ox.ac.uk/~vgg/data/"

SETS = (
    CoOpSet(
        "aircraft",
        "FGVC Aircraft: 100 variants of aircraft, listed in its own text files, as CoOp reads "
        "them.",
        classes=100,
        test_images=3333,
        folders=("fgvc_aircraft",),
        image_folders=("images",),
        files=("variants.txt", "images_variant_test.txt"),
        template="a photo of a {}, a type of aircraft.",
        citation="S. Maji, E. Rahtu, J. Kannala, M. Blaschko, A. Vedaldi, Fine-Grained Visual "
        "Classification of Aircraft, 2013",
        licence="for non-commercial research only",
        get=f"fgvc-aircraft-2013b.tar.gz, {OXFORD}fgvc-aircraft (its folder `data` becomes "
        "`fgvc_aircraft`)",
        read=read_variants,
    ),
    CoOpSet(
        "caltech101",
        "Caltech101: objects of 100 kinds (its background and second face class are left out).",
        classes=100,
        test_images=2465,
        folders=("caltech-101",),
        image_folders=("101_ObjectCategories",),
        files=("split_zhou_Caltech101.json",),
        citation="L. Fei-Fei, R. Fergus, P. Perona, Learning Generative Visual Models from Few "
        "Training Examples, 2004",
        licence="CC BY 4.0",
        get="101_ObjectCategories.tar.gz, https://data.caltech.edu/records/mzrjq-6wc02 and "
        f"split_zhou_Caltech101.json, {DRIVE}1hyarUivQE36mY6jSomru6Fjd-JzwcCzN",
    ),
    CoOpSet(
        "cars",
        "Stanford Cars: 196 makes, models and years of cars.",
        classes=196,
        test_images=8041,
        folders=("stanford_cars", "StanfordCars"),
        image_folders=("",),
        files=("split_zhou_StanfordCars.json",),
        citation="J. Krause, M. Stark, J. Deng, L. Fei-Fei, 3D Object Representations for "
        "Fine-Grained Categorization, 2013",
        licence="none is stated; its authors offer it for research",
        get="cars_test.tgz, http://ai.stanford.edu/~jkrause/car196/cars_test.tgz or a mirror (its "
        "folder `cars_test` goes into `stanford_cars`) and split_zhou_StanfordCars.json, "
        f"{DRIVE}1ObCFbaAgVu0I-k_Au-gIUcefirdAuizT",
    ),
    CoOpSet(
        "dtd",
        "DTD: 47 kinds of texture, by the word that describes them.",
        classes=47,
        test_images=1692,
        folders=("dtd", "DTD"),
        image_folders=("images",),
        files=("split_zhou_DescribableTextures.json",),
        template="{} texture.",
        citation="M. Cimpoi, S. Maji, I. Kokkinos, S. Mohamed, A. Vedaldi, Describing Textures in "
        "the Wild, 2014",
        licence="for research only",
        get=f"dtd-r1.0.1.tar.gz, {OXFORD}dtd and split_zhou_DescribableTextures.json, "
        f"{DRIVE}1u3_QfB467jqHgNXC00UIzbLZRQCg2S7x",
    ),
    CoOpSet(
        "eurosat",
        "EuroSAT: 10 kinds of land use, seen by the Sentinel-2 satellites.",
        classes=10,
        test_images=8100,
        folders=("eurosat",),
        image_folders=("2750", ""),
        files=("split_zhou_EuroSAT.json",),
        template="a centered satellite photo of {}.",
        citation="P. Helber, B. Bischke, A. Dengel, D. Borth, EuroSAT, a Novel Dataset and Deep "
        "Learning Benchmark for Land Use and Land Cover Classification, 2019",
        licence="MIT",
        get="EuroSAT.zip, http://madm.dfki.de/files/sentinel/EuroSAT.zip and "
        f"split_zhou_EuroSAT.json, {DRIVE}1Ip7yaCWFi0eaOFUGga0lUdVi_DDQth1o",
    ),
    CoOpSet(
        "flowers102",
        "Flowers102: 102 kinds of flowers that grow in the United Kingdom.",
        classes=102,
        test_images=2463,
        folders=("oxford_flowers", "Flower102"),
        image_folders=("jpg",),
        files=("split_zhou_OxfordFlowers.json",),
        template="a photo of a {}, a type of flower.",
        citation="M.-E. Nilsback, A. Zisserman, Automated Flower Classification over a Large "
        "Number of Classes, 2008",
        licence="none is stated",
        get=f"102flowers.tgz, {OXFORD}flowers/102 and split_zhou_OxfordFlowers.json, "
        f"{DRIVE}1Pp0sRXzZFZq15zVOzKjKBu4A9i01nozT",
    ),
    CoOpSet(
        "food101",
        "Food-101: photographs of 101 dishes.",
        classes=101,
        test_images=30300,
        folders=("food-101", "Food101"),
        image_folders=("images",),
        files=("split_zhou_Food101.json",),
        template="a photo of {}, a type of food.",
        citation="L. Bossard, M. Guillaumin, L. Van Gool, Food-101, Mining Discriminative "
        "Components with Random Forests, 2014",
        licence="the pictures belong to their owners; for research",
        get="food-101.tar.gz, https://data.vision.ee.ethz.ch/cvl/datasets_extra/food-101 and "
        f"split_zhou_Food101.json, {DRIVE}1QK0tGi096I0Ba6kggatX1ee6dJFIcEJl",
    ),
    CoOpSet(
        "pets",
        "Oxford Pets: 37 breeds of cats and dogs.",
        classes=37,
        test_images=3669,
        folders=("oxford_pets", "OxfordPets"),
        image_folders=("images",),
        files=("split_zhou_OxfordPets.json",),
        template="a photo of a {}, a type of pet.",
        citation="O. M. Parkhi, A. Vedaldi, A. Zisserman, C. V. Jawahar, Cats and Dogs, 2012",
        licence="CC BY-SA 4.0",
        get=f"images.tar.gz, {OXFORD}pets and split_zhou_OxfordPets.json, "
        f"{DRIVE}1501r8Ber4nNKvmlFVQZ8SeUHTcdTTEqs",
    ),
    CoOpSet(
        "sun397",
        "SUN397: 397 kinds of scenes, from abbey to zoo.",
        classes=397,
        test_images=19850,
        folders=("sun397", "SUN397"),
        image_folders=("SUN397", ""),
        files=("split_zhou_SUN397.json",),
        citation="J. Xiao, J. Hays, K. A. Ehinger, A. Oliva, A. Torralba, SUN Database, "
        "Large-scale Scene Recognition from Abbey to Zoo, 2010",
        licence="none is stated; for research",
        get="SUN397.tar.gz, http://vision.princeton.edu/projects/2010/SUN/SUN397.tar.gz and "
        f"split_zhou_SUN397.json, {DRIVE}1y2RD81BYuiyvebdN-JymPfyWYcd8_MUq",
    ),
    CoOpSet(
        "ucf101",
        "UCF101: 101 human actions, the middle frame of every video.",
        classes=101,
        test_images=3783,
        folders=("ucf101", "UCF101"),
        image_folders=("UCF-101-midframes", ""),
        files=("split_zhou_UCF101.json",),
        template="a photo of a person doing {}.",
        citation="K. Soomro, A. R. Zamir, M. Shah, UCF101, a Dataset of 101 Human Actions Classes "
        "from Videos in the Wild, 2012",
        licence="none is stated",
        get=f"UCF-101-midframes.zip, {DRIVE}10Jqome3vtUA2keJkNanAiFpgbyC9Hc2O and "
        f"split_zhou_UCF101.json, {DRIVE}1I0S0q91hJfsV9Gf4xDIjgDq4AqBNJb1y",
    ),
)

for _row in SETS:
    register_data(_row.name)(CoOpData.of(_row))
