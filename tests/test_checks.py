"""A method that keeps every promise, and for each check one that breaks it and no other."""

from __future__ import annotations

import threading
import time
from contextlib import nullcontext
from dataclasses import dataclass
from typing import Any, NamedTuple

import pytest
import torch

from bayestta import checks
from bayestta.adapter import Adapter
from bayestta.methods._records import Records
from bayestta.settings import Settings, setting

BROKEN: dict[str, type[Adapter]] = {}


@dataclass(frozen=True)
class GoodSettings(Settings):
    strength: float = setting(1.0, "How much of the prior is taken away.", least=0)
    unit: str = setting("nats", "Unit of the prior.", choices=("nats", "bits"))


class Good(Adapter):
    """Zero-shot, less what all answers so far have in common."""

    Settings = GoodSettings
    settings: GoodSettings
    name, title, tunes = "good", "Good", "a prior of the classes"
    citation = "Nobody, An Example, 2020"

    def declare(self):
        ones = torch.ones(len(self.classes), dtype=torch.float64, device=self.text.device)
        self.add_state("mass", ones, merge=lambda mine, theirs, share: mine + theirs - 1)

    def _adapt(self, x):
        with torch.no_grad():
            self.sketch = self._sketch(x)
        self.mass = self.mass + self.sketch.double().softmax(1).sum(0)
        return self._balanced(self.sketch)

    def _predict(self, x):
        return self._balanced(self._sketch(x))

    def _sketch(self, x):
        return self.model.logits(self.model.encode_image(x), self.text)

    def _balanced(self, sketch):
        return sketch - self.settings.strength * (self.mass / self.mass.sum()).log().to(sketch)


def breaks(check: str):
    def enter(cls):
        BROKEN[check] = cls
        return cls

    return enter


@breaks("describes_itself")
class NoCitation(Good):
    """Says not where it comes from."""

    citation = ""


@dataclass(frozen=True)
class Wordless(GoodSettings):
    strength: float = setting(1.0, "")


@breaks("settings_documented")
class Undocumented(Good):
    """Has a setting without a sentence."""

    Settings = Wordless


@dataclass(frozen=True)
class Unchecked(GoodSettings):
    def __post_init__(self):
        pass


@breaks("settings_checked")
class TakesAnything(Good):
    """Does not look at its settings."""

    Settings = Unchecked


@breaks("settings_round_trip")
class Halves(Good):
    """Works with another setting than the given one."""

    def __init__(self, *args, **keywords):
        if isinstance(keywords.get("strength"), float):
            keywords["strength"] = 0.5 * keywords["strength"] + 0.1
        super().__init__(*args, **keywords)


@breaks("finite_answers")
class Attached(Good):
    """Hands out a gradient."""

    def adapt(self, images):
        return super().adapt(images).requires_grad_()


@breaks("model_untouched")
class WritesIntoTheModel(Good):
    """Changes a tensor of the model."""

    def _adapt(self, x):
        self.model.towers()[0].logit_scale.data.add_(0.01)
        return super()._adapt(x)


@breaks("input_untouched")
class WritesIntoTheImages(Good):
    """Changes the batch in place."""

    def _adapt(self, x):
        answer = super()._adapt(x)
        x.mul_(0.5)
        return answer


@breaks("seeded")
class Unseeded(Good):
    """Draws its start from torch's global generator."""

    def declare(self):
        super().declare()
        self.add_state("noise", torch.randn(len(self.classes)))

    def _balanced(self, sketch):
        return super()._balanced(sketch) + self.noise


@breaks("pure_predict")
class CountsQuestions(Good):
    """Learns from being asked."""

    def declare(self):
        super().declare()
        self.add_state("questions", 0, merge="sum")

    def _predict(self, x):
        self.questions += 1
        return super()._predict(x)


@breaks("reset")
class KeepsItsAge(Good):
    """Counts its steps over a reset."""

    def reset(self):
        steps = self.steps
        super().reset()
        self.steps = steps


@breaks("save_and_load")
class Undeclared(Good):
    """Remembers its first batch, and declares nothing of it."""

    no_merge = "there is one first batch."
    first = 0.0

    def _adapt(self, x):
        answer = super()._adapt(x)
        if self.samples == 0:
            self.first = float(self.sketch.std())
        return answer * (1 + self.first)


class Lax:
    def __init__(self, start):
        self.start = start
        self.reset()

    def reset(self):
        self.value = self.start.clone()

    def state(self):
        return {"value": self.value.clone()}

    def load(self, state):
        self.value = state["value"].clone()

    def merge(self, other, share):
        pass


@breaks("loading")
class LoadsAnything(Good):
    """Keeps a part that does not look at what it loads."""

    def declare(self):
        super().declare()
        self.add_state("lax", Lax(torch.zeros(2)))


class Seen(NamedTuple):
    mean: float


@breaks("bounded_memory")
class NeverForgets(Good):
    """Keeps a number of every image."""

    def declare(self):
        super().declare()
        self.add_state("seen", Records(Seen(0.0), 10**9, lambda old, new: [*old, new]))

    def _adapt(self, x):
        for image in x:
            self.seen.insert_record(Seen(float(image.mean())))
        return super()._adapt(x)


@breaks("merge")
class EmptiesTheOther(Good):
    """Takes the evidence instead of a copy of it."""

    def merge_state(self, other, share):
        super().merge_state(other, share)
        other.reset_state()


@breaks("independent")
class Jealous(Good):
    """Answers otherwise where another adapter had a turn in between."""

    turn = threading.local()

    def _adapt(self, x):
        disturbed = self.samples > 0 and getattr(self.turn, "last", self) is not self
        answer = super()._adapt(x)
        self.turn.last = self
        return answer + 1 if disturbed else answer


@breaks("bad_images")
class SwallowsNaN(Good):
    """Repairs broken images in silence."""

    def adapt(self, images):
        return super().adapt(torch.nan_to_num(images))


@breaks("failed_step")
class HalfSteps(Good):
    """Counts a batch before it has been encoded, and does not take that back."""

    def unchanged_on_error(self, only=None):
        return nullcontext() if only is None else super().unchanged_on_error(only)

    def _adapt(self, x):
        self.mass = self.mass + 1
        return super()._adapt(x)


@breaks("grad_mode")
class NeedsGradients(Good):
    """Differentiates outside of the step."""

    def adapt(self, images):
        torch.ones(1, requires_grad=True).sum().backward()
        return super().adapt(images)


@breaks("threads")
class SharesScratch(Good):
    """Leaves its batch lying about where every instance finds it."""

    scratch: Any = None

    def _adapt(self, x):
        type(self).scratch = x
        time.sleep(0.02)
        return super()._adapt(type(self).scratch)


@breaks("label_skew")
class NeedsTwoImages(Good):
    """Divides by the spread of the batch."""

    def _adapt(self, x):
        answer = super()._adapt(x)
        spread = (answer - answer.mean(0)).square().sum(0) / (len(answer) - 1)
        return answer / (1 + spread)


@breaks("half_precision")
class KeepsTheModelsType(Good):
    """Keeps state in the type of the weights."""

    def declare(self):
        super().declare()
        self.add_state("halves", torch.zeros(3, dtype=self.model.dtype))


@breaks("cached_features")
class NeedsPixels(Good):
    """Looks at the brightness of an image, and does not say that it needs one."""

    def _adapt(self, x):
        return super()._adapt(x) * (1 + x.flatten(1).std(1, keepdim=True))


def failing(method: type[Adapter]) -> dict[str, str]:
    case, found = checks.Case(method), {}
    for name in checks.CHECKS:
        try:
            checks.run_check(name, case)
        except checks.CheckFailed as error:
            found[name] = str(error)
    return found


def test_the_good_method_passes_on_both_towers():
    checks.check_adapter(Good)
    checks.check_adapter(Good, settings={"strength": 0.5, "unit": "bits"}, towers=["LayerNorm"])


def test_every_check_has_a_method_that_breaks_it():
    assert list(BROKEN) == list(checks.CHECKS)


@pytest.mark.parametrize("check", BROKEN)
def test_a_broken_promise_fails_exactly_its_check(check):
    found = failing(BROKEN[check])
    assert list(found) == [check], found
    promise = checks.CHECKS[check].__doc__
    assert promise.strip() in found[check]
    assert found[check].startswith(f"good fails the check '{check}' on the LayerNorm tower: ")
    assert "\n" not in found[check]


def test_the_first_broken_promise_is_raised():
    with pytest.raises(checks.CheckFailed, match="fails the check 'model_untouched' on the Batch"):
        checks.check_adapter(WritesIntoTheModel)


@pytest.mark.parametrize("name", checks.CHECKS)
def test_a_check_has_a_name_and_one_sentence(name):
    check = getattr(checks, name)
    assert name in checks.__all__
    assert checks.CHECKS[name] is check
    assert check.__doc__.count("\n") == 0
    assert check.__doc__.endswith(".")


def test_a_check_is_skipped_by_name_and_with_a_reason():
    checks.check_adapter(NoCitation, skip={"describes_itself": "a draft"}, towers=["LayerNorm"])
    with pytest.raises(ValueError, match="unknown check 'describe_itself': did you mean"):
        checks.check_adapter(NoCitation, skip={"describe_itself": "a draft"})
    with pytest.raises(ValueError, match="'merge' is skipped without a reason"):
        checks.check_adapter(NoCitation, skip={"merge": ""})


def test_a_tiny_model_is_the_callers_own():
    one, two = checks.tiny_model("BatchNorm"), checks.tiny_model("BatchNorm")
    assert one.fingerprint == two.fingerprint
    next(one.visual.parameters()).data.zero_()
    assert next(two.visual.parameters()).abs().sum() > 0
    with pytest.raises(ValueError, match="unknown tower 'BatchNrom': did you mean 'BatchNorm'"):
        checks.tiny_model("BatchNrom")


def test_labels_cannot_leak():
    """An adapter is called with the images alone: labels and domains stop at the runner."""
    from bayestta.data._base import Batch
    from bayestta.evaluation.steps import steps

    given = []

    class Nosy(Good):
        def adapt(self, *args, **keywords):
            given.append((args, keywords))
            return super().adapt(*args, **keywords)

    model = checks.tiny_model()
    x = torch.zeros(2, 3, 16, 16)
    batches = [Batch(x, torch.tensor([0, 1]), "dusk", torch.arange(2))]
    list(steps(Nosy(model, ["a", "b"]), batches))
    assert len(given) == 1
    assert len(given[0][0]) == 1
    assert torch.equal(given[0][0][0], x)
    assert not given[0][1]
