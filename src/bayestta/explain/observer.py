"""What adaptation did to the features: t-SNE of chosen steps and Grad-CAM of chosen images."""

from __future__ import annotations

import importlib.util
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from bayestta.evaluation.turned import png, visible
from bayestta.explain.gradcam import COLOURS, SIDE, Layer, find_layer, grad_cam, overlay
from bayestta.models._text import classifier

if TYPE_CHECKING:
    from bayestta.adapter import Adapter
    from bayestta.data._base import Batch
    from bayestta.evaluation.steps import Step

LAST = -1
FEWEST = 8  # images that t-SNE can arrange
KEEPS = ("tuned", "student", "teacher", "teacher_statistics")  # the later ones give the answers


@dataclass(frozen=True, eq=False)
class Seen:
    """A chosen step: its features before and after, and the maps of some of its images."""

    step: int
    domain: str
    y: Tensor | None  # (n,)
    before: Tensor  # (n,D) of the pristine model
    after: Tensor | None  # (n,D) of the adapted one; None where the tower is as it was
    cams: list[dict[str, Any]]


class Explain:
    """Watches a run and makes the pictures of its report.

    Parameters
    ----------
    adapter
        The method that runs. Only its image tower is looked at: the tensors that it keeps as
        `tuned`, `student` or `teacher`. A method that tunes none leaves the features as they were.
    steps
        Which steps, counted from 0; -1 is the last one.
    images
        Of each of these steps: how many, or which positions in the batch. Images about which the
        method and zero-shot disagree come first.
    samples
        Points of a t-SNE, at most.

    `watch = Explain(adapter)`, then `evaluate(adapter, watch.watch(batches), progress=watch.see)`,
    then `result.pictures = watch.pictures()`.
    """

    def __init__(
        self,
        adapter: Adapter,
        *,
        steps: Sequence[int] = (0, LAST),
        images: int | Sequence[int] = 4,
        samples: int = 256,
    ) -> None:
        if importlib.util.find_spec("sklearn") is None:  # now, not after hours of running
            raise ImportError(
                "the t-SNE of a report needs the package scikit-learn, which is not installed: "
                "pip install 'bayestta[report]'."
            )
        wrong = [step for step in steps if step < LAST]
        if wrong:
            raise ValueError(
                f"step {wrong[0]} does not exist: count from 0, or say -1 for the last."
            )
        self.adapter, self.steps, self.samples = adapter, tuple(steps), samples
        self.images = images
        self.seen: list[Seen] = []
        self._batch: Batch | None = None
        self._last: tuple[Batch, Step] | None = None
        self._layer: Layer | None = None
        self._text: Tensor | None = None

    def watch(self, batches: Iterable[Batch]) -> Iterator[Batch]:
        """The batches, as they are."""
        for batch in batches:
            self._batch = batch
            yield batch

    def see(self, step: Step) -> None:
        """Look at a step that was just taken; to be called after each."""
        if self._batch is None:
            raise ValueError("no batch was seen before the step: run over `watch(batches)`.")
        self._last = self._batch, step
        if step.index in self.steps:
            self._look(self._batch, step)

    def pictures(self) -> dict[str, Any]:
        """What was seen, ready for `Result.pictures`; to be called when the run is over."""
        if self._last is None:
            raise ValueError("no step was seen: pass `see` as the progress of the run.")
        batch, last = self._last
        if LAST in self.steps and all(one.step != last.index for one in self.seen):
            self._look(batch, last)
        notes = [
            f"step {step} was not reached: the stream had {last.index + 1} steps"
            for step in self.steps
            if step > last.index
        ]
        if all(one.after is None for one in self.seen):
            notes.append(
                f"{self.adapter.name} leaves the image tower as it is: features are the same "
                "before and after, and maps differ only where the answer does"
            )
        return {
            "tsne": [t for t in (tsne(one, self.adapter.seed) for one in self.seen) if t],
            "cam": [cam for one in self.seen for cam in one.cams],
            "notes": notes,
        }

    @torch.no_grad()
    def _look(self, batch: Batch, step: Step) -> None:
        adapter, model = self.adapter, self.adapter.model
        x: Tensor = getattr(batch.x, "plain", batch.x)  # of views the plain one
        params = tuned_tensors(adapter)
        norms = "batch" if adapter.norms == "batch" else "source"  # robust ones are in params
        before, after = model.encode_image(x), None
        if hasattr(adapter, "encode"):
            after = adapter.encode(x)
        elif params or norms != "source":
            after = model.encode_image(x, params, norms)
        after = None if after is None or torch.equal(before, after) else after
        cams = self._maps(x, step, before, params, norms) if x.ndim == 4 else []
        n = self.samples
        y = None if batch.y is None else batch.y[:n].cpu()
        cut = None if after is None else after[:n].cpu()
        self.seen.append(Seen(step.index, step.domain, y, before[:n].cpu(), cut, cams))

    def _maps(
        self, x: Tensor, step: Step, before: Tensor, params: dict[str, Tensor], norms: str
    ) -> list[dict[str, Any]]:
        adapter, model = self.adapter, self.adapter.model
        if self._text is None:
            self._text = classifier(model, adapter.classes, adapter.templates)
        sketch = model.logits(before, self._text).argmax(1).tolist()
        answer = step.logits.argmax(1).tolist()
        pick = self._pick(sketch, answer)
        if not pick:
            return []
        self._layer = self._layer or find_layer(model, x)
        few = x[pick]
        zero = grad_cam(model, few, self._text, [sketch[i] for i in pick], layer=self._layer)
        whole = norms != "source"  # statistics of the batch need all of it
        cam = grad_cam(
            model,
            x if whole else few,
            self._text,
            [answer[i] for i in pick],
            pick=pick if whole else None,
            params=params,
            norms=norms,
            layer=self._layer,
        )
        found = []
        for row, i in enumerate(pick):
            shown = visible(model, few[row])
            truth = None if step.y is None else adapter.classes[int(step.y[i])]
            sides = {"zero_shot": (sketch[i], zero[row]), "adapted": (answer[i], cam[row])}
            found.append(
                {"step": step.index, "domain": step.domain, "image": i, "truth": truth}
                | {"png": png(shown, SIDE, COLOURS), "layer": self._layer.name}
                | {
                    key: {
                        "answer": adapter.classes[k],
                        "png": png(overlay(shown, heat), SIDE, COLOURS),
                    }
                    for key, (k, heat) in sides.items()
                }
            )
        return found

    def _pick(self, sketch: Sequence[int], answer: Sequence[int]) -> list[int]:
        if not isinstance(self.images, int):
            return [i for i in self.images if i < len(answer)]
        order = sorted(range(len(answer)), key=lambda i: sketch[i] == answer[i])  # stable
        return order[: self.images]


def tuned_tensors(adapter: Adapter) -> dict[str, Tensor]:
    """Copies of the tensors of the image tower that the method answers with, by their names."""
    own = adapter.model.visual.state_dict().keys()
    found: dict[str, Tensor] = {}
    holders = (adapter, getattr(adapter, "refinement", None))
    for kept in (getattr(holder, name, None) for holder in holders for name in KEEPS):
        if isinstance(kept, Mapping):
            found |= {key: value.detach().clone() for key, value in kept.items() if key in own}
    return found


def tsne(seen: Seen, seed: int) -> dict[str, Any] | None:
    """The features of a step in the plane, in 0..1; None where they are too few.

    The plane after adaptation starts from that before it, so that a class stays about where it was.
    """
    if len(seen.before) < FEWEST:
        return None
    before = _embed(seen.before.numpy(), "pca", seed)
    after = None
    if seen.after is not None:
        start = before / before[:, 0].std() * 1e-4  # as t-SNE scales its own start
        after = _embed(seen.after.numpy(), start, seed)
    return {
        "step": seen.step,
        "domain": seen.domain,
        "labels": None if seen.y is None else seen.y.tolist(),
        "before": _unit(before),
        "after": None if after is None else _unit(after),
    }


def _embed(z: NDArray[np.float32], start: Any, seed: int) -> NDArray[np.float32]:
    from sklearn.manifold import TSNE

    near = min(30.0, (len(z) - 1) / 3)
    pace = max(
        10.0, len(z) / 48
    )  # scikit-learn's own, at least 50, throws points out of small sets
    made = TSNE(perplexity=near, init=start, learning_rate=pace, random_state=seed)
    plane: NDArray[np.float32] = made.fit_transform(z)
    return plane


def _unit(plane: NDArray[np.float32]) -> list[list[float]]:
    low, high = plane.min(0), plane.max(0)
    scaled = 0.5 + (plane - (low + high) / 2) / max(float((high - low).max()), 1e-12)
    listed: list[list[float]] = np.round(scaled.astype(float), 3).tolist()
    return listed
