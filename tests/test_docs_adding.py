"""docs/adding.md: its code runs as it stands, and its method keeps the contract."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import torch

from bayestta import checks
from bayestta.bench import Run, execute
from bayestta.data import _base as base
from bayestta.data import list_data
from bayestta.methods import METHODS, make_adapter, methods

PAGE = Path(__file__).parents[1] / "docs" / "adding.md"
BLOCKS = re.findall(r"^```python\n(.*?)^```", PAGE.read_text(encoding="utf-8"), re.S | re.M)
METHOD = "balance"


@pytest.fixture(scope="module")
def page(tmp_path_factory: pytest.TempPathFactory):
    """What the page defines, all blocks run in one folder; nothing of it stays registered."""
    folder, known = tmp_path_factory.mktemp("adding"), set(methods())
    names: dict = {"__name__": __name__}  # dataclasses look up the module that they are in
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        for i, block in enumerate(BLOCKS):
            exec(compile(block, f"docs/adding.md, block {i + 1}", "exec"), names)
    yield names
    for name in set(METHODS) - known:
        METHODS.remove(name)
    base.REGISTRY.remove("patches")


def test_there_is_a_block_for_each(page):
    assert len(BLOCKS) == 4
    assert METHOD in methods()
    assert "patches" in {info.name for info in list_data()}
    assert isinstance(page["model"], page["VLM"])


@pytest.mark.parametrize("tower", ["BatchNorm", "LayerNorm"])
@pytest.mark.parametrize("check", checks.CHECKS)
def test_the_method_keeps_the_contract(page, check, tower):
    checks.run_check(check, checks.Case(page["Balance"], tower))


def test_the_method_does_what_it_says(page):
    """Balanced by hand, image by image."""
    model, data = page["model"], page["data"]
    made = make_adapter(METHOD, model, data.classes, data.templates, strength=0.5)
    x = torch.stack([model.preprocess(data["dusk"][i][0]) for i in range(5)])
    zero_shot = model.scale * model.encode_image(x) @ made.text.T
    mass = [1.0] * 6
    for row in zero_shot.softmax(1).tolist():
        mass = [m + p for m, p in zip(mass, row, strict=True)]
    prior = torch.tensor([m / sum(mass) for m in mass])
    torch.testing.assert_close(made.adapt(x), zero_shot - 0.5 * prior.log())


def test_the_three_work_together(page):
    found = page["found"]
    assert list(found) == ["zero-shot", "balance", "bayestta"]
    for result in found.values():
        assert result.n == 1800
        assert [domain["name"] for domain in result.domains] == ["noon", "evening", "dusk"]
        assert result.domains[0]["accuracy"] > 95  # of six colours, seen clearly
    dusk = {method: result.domains[2]["accuracy"] for method, result in found.items()}
    assert dusk["zero-shot"] < 90
    assert dusk["bayestta"] > dusk["zero-shot"]


def test_the_last_sentence_is_true(page):
    assert 'execute(Run("patches", "hue", "balance"), model=model, data=data)' in PAGE.read_text()
    result = execute(Run("patches", "hue", "balance"), model=page["model"], data=page["data"])
    assert (result.method, result.model, result.data) == ("balance", "hue", "patches")
