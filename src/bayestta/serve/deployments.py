"""The deployments of Ray Serve: an encoder that batches, and the ingress with the same routes."""

from __future__ import annotations

import importlib
import time
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch

from bayestta.models.base import load_model
from bayestta.serve.actors import APP
from bayestta.serve.app import make_app
from bayestta.serve.cluster import Cluster
from bayestta.serve.server import Options

ONGOING = 1000  # requests that a deployment holds at a time, open pages among them


def deploy(
    model: str,
    options: Options,
    actors: Sequence[Any],
    classes: list[str] | None,
    encoders: int,
    where: dict[str, Any],
) -> None:
    """Start encoder and ingress on the running cluster."""
    serve: Any = importlib.import_module("ray.serve")
    limits = options.limits

    class Encoder:
        """Stateless: any number of copies; pixels of many requests in one pass."""

        def __init__(self) -> None:
            self.model = load_model(model, **where)

        @serve.batch(max_batch_size=limits.max_batch, batch_wait_timeout_s=limits.max_delay)  # type: ignore[untyped-decorator]
        async def encode(self, batches: list[Any]) -> list[tuple[Any, float]]:
            """Features per request, and the seconds of the pass that they were in."""
            began = time.perf_counter()
            x = torch.from_numpy(np.concatenate(batches))
            with torch.inference_mode():
                parts = [self.model.encode_image(part) for part in torch.split(x, limits.max_batch)]
            z = torch.cat(parts).cpu().numpy()
            ends = np.cumsum([len(each) for each in batches])
            seconds = time.perf_counter() - began
            return [(part.copy(), seconds) for part in np.split(z, ends[:-1])]

    def build() -> Any:
        """The routes of the single server, made on the replica."""
        encoder = serve.get_deployment_handle("Encoder", app_name=APP)
        return make_app(
            Cluster(load_model(model), encoder, actors, limits, classes),
            limits,
            key=options.key,
            hosts=options.hosts,
            url_hosts=options.url_hosts,
        )

    # Ray Serve's own limit of 5 requests per copy would leave most of a batch empty
    common = {"ray_actor_options": {"num_cpus": 0.5}, "max_ongoing_requests": ONGOING}
    scale = {"min_replicas": 1, "max_replicas": encoders, "target_ongoing_requests": 8}
    encoder = serve.deployment(Encoder, name="Encoder", autoscaling_config=scale, **common)
    ingress = serve.deployment(serve.ingress(build)(), name="Ingress", **common)
    serve.start(http_options={"host": options.host, "port": options.port})
    serve.run(ingress.bind(encoder.bind()), name=APP, route_prefix="/")
