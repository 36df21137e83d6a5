"""The deployments of Ray Serve: an encoder that batches, and the ingress with the same routes."""

from __future__ import annotations

import importlib
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch

from bayestta.models.base import load_model
from bayestta.serve.app import make_app
from bayestta.serve.cluster import APP, Cluster
from bayestta.serve.server import Options


def deploy(
    model: str,
    options: Options,
    actors: Sequence[Any],
    classes: list[str] | None,
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
        async def encode(self, batches: list[Any]) -> list[Any]:
            x = torch.from_numpy(np.concatenate(batches))
            with torch.inference_mode():
                parts = [self.model.encode_image(part) for part in torch.split(x, limits.max_batch)]
            z = torch.cat(parts).cpu().numpy()
            ends = np.cumsum([len(each) for each in batches])
            return [part.copy() for part in np.split(z, ends[:-1])]

    def build() -> Any:
        """The routes of the single server, made on the replica."""
        encoder = serve.get_deployment_handle("Encoder", app_name=APP)
        return make_app(
            Cluster(load_model(model), encoder, actors, classes),
            limits,
            key=options.key,
            hosts=options.hosts,
            url_hosts=options.url_hosts,
        )

    cores = {"num_cpus": 0.5}
    encoder = serve.deployment(Encoder, name="Encoder", ray_actor_options=cores)
    ingress = serve.deployment(serve.ingress(build)(), name="Ingress", ray_actor_options=cores)
    serve.start(http_options={"host": options.host, "port": options.port})
    serve.run(ingress.bind(encoder.bind()), name=APP, route_prefix="/")
