"""A run told to TensorBoard, Weights & Biases (offline) or MLflow, where their packages are there.

with open_log("tensorboard", "logs", run) as log:
    result = execute(run, progress=log.step)
    log.result(result)
"""

from __future__ import annotations

import importlib
import logging
import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

from bayestta.names import unknown

if TYPE_CHECKING:
    from bayestta.bench.plan import Run
    from bayestta.evaluation.result import Result
    from bayestta.evaluation.steps import Step

Write = Callable[[int, Mapping[str, float]], object]  # images so far, numbers by name


class Log:
    """Turns steps and results into numbers by name, at the number of images so far."""

    def __init__(self, write: Write) -> None:
        self._write, self.images, self.hits = write, 0, 0

    def step(self, step: Step) -> None:
        self.images += step.n
        told = {f"seconds/{part}": value for part, value in step.seconds.items()}
        told |= {
            f"record/{key}": float(value)
            for key, value in step.record.items()
            if isinstance(value, (bool, int, float))
        }
        if step.y is not None:
            hits = int((step.probabilities.argmax(1).cpu() == step.y.cpu()).sum())
            self.hits += hits
            told["accuracy/batch"] = 100 * hits / step.n
            told["accuracy/so far"] = 100 * self.hits / self.images
        self._write(self.images, told)

    def result(self, result: Result) -> None:
        told = {f"final/{key}": getattr(result, key) for key in ("accuracy", "ece", "nll", "brier")}
        told |= {f"domain/{row['name']}": row["accuracy"] for row in result.domains}
        told |= {f"round/{row['round']}": row["accuracy"] for row in result.rounds}
        self._write(self.images, {key: value for key, value in told.items() if value is not None})


@contextmanager
def open_log(kind: str | None, folder: str | os.PathLike[str], run: Run) -> Iterator[Log]:
    """Log to `tensorboard`, `wandb` or `mlflow` under a folder; None logs nothing.

    A missing package is told now, before the work.
    """
    if kind is None:
        yield Log(lambda images, values: None)
        return
    if kind not in KINDS:
        raise ValueError(unknown("logger", kind, KINDS))
    told = {key: value for key, value in asdict(run).items() if value not in (None, {})}
    with KINDS[kind](Path(folder).absolute(), run.file.removesuffix(".json"), told) as write:
        yield Log(write)


@contextmanager
def _tensorboard(folder: Path, name: str, told: dict[str, Any]) -> Iterator[Write]:
    _require("tensorboard", "TensorBoard", "tensorboard")
    from torch.utils.tensorboard.writer import SummaryWriter

    writer: Any = SummaryWriter(str(folder / name))
    writer.add_text("run", "\n".join(f"    {key}: {value}" for key, value in told.items()))

    def write(images: int, values: Mapping[str, float]) -> None:
        for key, value in values.items():
            writer.add_scalar(key, value, images)

    try:
        yield write
    finally:
        writer.close()


@contextmanager
def _wandb(folder: Path, name: str, told: dict[str, Any]) -> Iterator[Write]:
    wandb = _require("wandb", "Weights & Biases", "wandb")
    folder.mkdir(parents=True, exist_ok=True)
    options = wandb.Settings(silent=True, console="off", x_disable_stats=True)
    run = wandb.init(
        project="bayestta",
        name=name,
        dir=str(folder),
        config=told,
        mode="offline",
        settings=options,
    )
    failed = True
    try:
        yield lambda images, values: run.log(dict(values), step=images)
        failed = False
    finally:
        run.finish(exit_code=int(failed))


@contextmanager
def _mlflow(folder: Path, name: str, told: dict[str, Any]) -> Iterator[Write]:
    os.environ.setdefault("MLFLOW_DISABLE_TELEMETRY", "true")  # logging is local, all of it
    mlflow = _require("mlflow", "MLflow", "mlflow")
    folder.mkdir(parents=True, exist_ok=True)
    logging.getLogger("alembic").setLevel(logging.WARNING)  # else it tells every table it makes
    mlflow.set_tracking_uri(f"sqlite:///{folder / 'mlflow.db'}")
    if mlflow.get_experiment_by_name("bayestta") is None:  # its files belong beside the data base
        mlflow.create_experiment("bayestta", artifact_location=(folder / "mlruns").as_uri())
    mlflow.set_experiment("bayestta")
    with mlflow.start_run(run_name=name):
        mlflow.log_params(told)

        def write(images: int, values: Mapping[str, float]) -> None:
            mlflow.log_metrics(dict(values), step=images)

        yield write


KINDS: dict[str, Callable[[Path, str, dict[str, Any]], Any]] = {
    "tensorboard": _tensorboard,
    "wandb": _wandb,
    "mlflow": _mlflow,
}


def _require(module: str, title: str, extra: str) -> Any:
    try:
        return importlib.import_module(module)
    except ModuleNotFoundError as error:
        if error.name != module:
            raise  # it is there, and something that it needs itself is not
        raise ImportError(
            f"--log {extra} needs {title}, which is not installed: pip install 'bayestta[{extra}]'."
        ) from error
