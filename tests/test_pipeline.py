"""`pipeline`: called as transformers' zero-shot-image-classification pipeline is, and it adapts."""

from __future__ import annotations

import numpy as np
import pytest
import torch
import transformers
from PIL import Image

import bayestta as bt
from test_transformers import write

LABELS = ["cat", "dog", "ship"]


@pytest.fixture(scope="module")
def images():
    rng = np.random.default_rng(0)
    return [Image.fromarray(rng.integers(0, 256, (40, 50, 3), dtype=np.uint8)) for _ in range(5)]


@pytest.fixture(scope="module")
def files(images, tmp_path_factory):
    folder = tmp_path_factory.mktemp("images")
    for i, image in enumerate(images):
        image.save(folder / f"{i}.png")
    return sorted(folder.iterdir())


def scores(answer):
    return {row["label"]: row["score"] for row in answer}


def test_one_image_gives_a_list_and_several_a_list_of_lists(tiny_vit, images, files):
    pipe = bt.pipeline(tiny_vit, LABELS, adapt=False)
    one = pipe(images[0])
    assert [sorted(row) for row in one] == [["label", "score"]] * 3
    assert sorted(scores(one)) == sorted(LABELS)
    values = [row["score"] for row in one]
    assert values == sorted(values, reverse=True)
    assert sum(values) == pytest.approx(1)
    assert pipe(str(files[0])) == pipe(files[0].as_uri()) == pipe(files[0]) == one
    assert pipe([files[0]]) == [one]
    several = pipe([files[0], images[1], np.asarray(images[2])])
    assert len(several) == 3
    batch = torch.stack([tiny_vit.preprocess(image) for image in images[:3]])
    for mine, theirs in zip(several, pipe(batch), strict=True):
        assert scores(mine) == pytest.approx(scores(theirs))
    assert pipe(images[0], top_k=1) == one[:1]
    assert bt.pipeline(tiny_vit, LABELS, adapt=False, top_k=2)(images) == [
        answer[:2] for answer in pipe(images)
    ]
    assert pipe.adapter.samples == 0


def test_it_answers_and_learns_as_the_adapter_does(tiny_vit, images):
    pipe = bt.pipeline(tiny_vit, LABELS, batch_size=2, seed=3, alpha=0.5)
    adapter = bt.BayesTTA(tiny_vit, LABELS, seed=3, alpha=0.5)
    answers = pipe(images)
    want = [adapter.probabilities(adapter.adapt(images[i : i + 2])) for i in (0, 2, 4)]
    found = [[scores(answer)[label] for label in LABELS] for answer in answers]
    # calibration follows the batches one by one, as it did in the pipeline
    torch.testing.assert_close(torch.tensor(found), torch.cat(want))
    assert pipe.adapter.samples == 5
    pipe(images[0], adapt=False)
    assert pipe.adapter.samples == 5
    assert "BayesTTA(model='tiny:mini-vit', 3 classes, 5 samples, alpha=0.5)" in repr(pipe)


def test_an_image_that_cannot_be_read_changes_nothing(tiny_vit, images):
    pipe = bt.pipeline(tiny_vit, LABELS, batch_size=2)
    pipe(images[:2])
    before = pipe.adapter.state()
    with pytest.raises(ValueError, match=r"missing\.jpg"):
        pipe([*images, "missing.jpg"])
    after = pipe.adapter.state()
    assert pipe.adapter.samples == 2
    assert all(
        torch.equal(v, after[k]) if isinstance(v, torch.Tensor) else v == after[k]
        for k, v in before.items()
    )


def test_labels_may_come_with_the_first_call(tiny_vit, images):
    pipe = bt.pipeline(tiny_vit, hypothesis_template="This is a photo of {}.")
    with pytest.raises(ValueError, match="has no labels to choose from: give candidate_labels"):
        pipe(images[0])
    with pytest.raises(ValueError, match="has no labels yet: call it once"):
        pipe.save("x")
    pipe(images[0], candidate_labels=LABELS)
    assert pipe.adapter.templates == ["This is a photo of {}."]
    pipe(images[0], candidate_labels=LABELS[::-1])
    assert pipe.adapter.samples == 2
    with pytest.raises(ValueError, match=r"adapts to 3 labels .* 2 of this call .*pipe.model"):
        pipe(images[0], candidate_labels=["cat", "dog"])
    assert pipe.adapter.samples == 2


def test_the_template_may_come_with_the_first_call(tiny_vit, images):
    pipe = bt.pipeline(tiny_vit)
    for _ in range(2):
        pipe(images[0], candidate_labels=LABELS, hypothesis_template="This is {}.")
    assert pipe.adapter.templates == ["This is {}."]
    pipe(images[0])
    with pytest.raises(ValueError, match=r"prompts are \['This is {}.'\].*others \(\['a {}.'\]\)"):
        pipe(images[0], hypothesis_template="a {}.")
    assert pipe.adapter.samples == 3


def test_a_state_is_gone_on_from(tiny_vit, images, tmp_path):
    path = tmp_path / "pipe.state"
    pipe = bt.pipeline(tiny_vit, LABELS, state=path)
    pipe(images[:3])
    pipe.save()
    again = bt.pipeline(tiny_vit, LABELS, state=path)
    assert again.adapter.samples == 3
    assert again(images[3:]) == pipe(images[3:])
    again.save(tmp_path / "other.state")
    assert (tmp_path / "other.state").exists()
    with pytest.raises(ValueError, match="has another classes"):
        bt.pipeline(tiny_vit, ["cat", "dog"], state=path)
    with pytest.raises(ValueError, match=r"has no state file yet: write save\(PATH\)"):
        bt.pipeline(tiny_vit, LABELS).save()


@pytest.mark.parametrize(("kind", "function"), [("clip", "softmax"), ("siglip", "sigmoid")])
def test_the_scores_are_those_of_transformers_own_pipeline(kind, function, tmp_path, images):
    model = write(kind, tmp_path)
    tokenizer = transformers.AutoTokenizer.from_pretrained(tmp_path)
    if kind == "siglip":
        tokenizer.model_input_names = ["input_ids"]  # padding is seen, as in training
    processor = transformers.AutoImageProcessor.from_pretrained(tmp_path)
    parts = {"model": model, "tokenizer": tokenizer, "image_processor": processor}
    theirs = transformers.pipeline("zero-shot-image-classification", **parts)
    length = {"padding": "max_length", "max_length": 12}  # they take 64 for every SigLIP
    theirs.tokenizer = lambda lines, **options: tokenizer(lines, **{**options, **length})
    wrapped = bt.wrap(model, tokenizer, processor)
    options = {"hypothesis_template": "a photo of {}", "method": "zero-shot"}
    pipe = bt.pipeline(wrapped, ["cat", "dog"], function_to_apply=function, **options)
    square = images[0].resize((32, 32))  # resizing may differ by a grey level
    template = options["hypothesis_template"]
    want = theirs(square, candidate_labels=["cat", "dog"], hypothesis_template=template)
    mine = pipe(square)
    assert [row["label"] for row in mine] == [row["label"] for row in want]
    assert scores(mine) == pytest.approx(scores(want), abs=1e-5)
    soft = bt.pipeline(wrapped, ["cat", "dog"], **options)(square)
    assert sum(scores(soft).values()) == pytest.approx(1)
    assert [row["label"] for row in soft] == [row["label"] for row in mine]


def test_embeddings_go_through_as_well(tiny_vit):
    model = bt.wrap(text=torch.eye(3), scale=10.0)
    pipe = bt.pipeline(model, LABELS, refine=False, top_k=1)
    assert [a[0]["label"] for a in pipe(torch.eye(3).numpy())] == LABELS


def test_what_cannot_be_meant_gets_one_sentence(tiny_vit, images):
    for options, message in (
        ({"method": "bayesta"}, "unknown method 'bayesta': did you mean 'bayestta'"),
        ({"function_to_apply": "sigmoi"}, "unknown function_to_apply 'sigmoi'"),
        ({"function_to_apply": "sigmoid"}, "has no logit bias"),
        ({"top_k": 0}, "top_k is 0: give a whole number of 1 or more"),
        ({"batch_size": 1.5}, "batch_size is 1.5"),
        ({"alhpa": 1}, "unknown setting of bayestta 'alhpa': did you mean 'alpha'"),
        ({"hypothesis_template": "no place"}, "lack the place for the class name"),
    ):
        with pytest.raises(ValueError, match=message):
            bt.pipeline(tiny_vit, LABELS, **options)
    with pytest.raises(TypeError, match=r"give a model that you hold to bayestta\.wrap"):
        bt.pipeline(tiny_vit.clip, LABELS)
    pipe = bt.pipeline(tiny_vit, LABELS)
    with pytest.raises(ValueError, match=r"http://a/b\.jpg is not a local file"):
        pipe("http://a/b.jpg")
    with pytest.raises(ValueError, match="the batch is empty"):
        pipe([])
    with pytest.raises(ValueError, match=r"shape \(3, 32, 32\)"):
        pipe(tiny_vit.preprocess(images[0]))
