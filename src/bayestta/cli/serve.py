"""`bayestta serve`: adapters behind HTTP, one per camera, on one model."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from bayestta.cli import _preparation as jobs
from bayestta.cli._app import Quiet, app, examples, screen

MIB = 1024**2


@app.command(
    epilog=examples(
        "bayestta serve --model lit --store ./store",
        "bayestta serve --store ./store --classes cat,dog,horse --port 9000",
        "bayestta serve --store ./store --host 0.0.0.0 --api-key-file key.txt",
    )
)
def serve(
    ctx: typer.Context,
    store: Annotated[Path, typer.Option("--store", help="Folder of states; made if needed.")],
    model: jobs.Model = jobs.MODEL,
    classes: Annotated[
        str | None,
        typer.Option(
            "--classes", "-c", help="Names, or a file of them: adapters are made on first use."
        ),
    ] = None,
    host: Annotated[
        str, typer.Option("--host", help="Address to listen on; the default is this machine only.")
    ] = "127.0.0.1",
    port: Annotated[
        int, typer.Option("--port", min=0, max=65535, help="Port to listen on; 0 takes a free one.")
    ] = (8000),
    api_key: Annotated[
        str | None,
        typer.Option(
            "--api-key", envvar="BAYESTTA_API_KEY", help="Key that every request must carry."
        ),
    ] = None,
    api_key_file: Annotated[
        Path | None, typer.Option("--api-key-file", help="File that holds the key.")
    ] = None,
    allow_urls: Annotated[
        str | None,
        typer.Option("--allow-urls", help="Hosts, with commas, from which images are fetched."),
    ] = None,
    max_batch: Annotated[int, typer.Option(min=1, help="Images per pass of the encoder.")] = 128,
    max_delay: Annotated[
        float, typer.Option(min=0, help="Milliseconds that an image waits for others.")
    ] = 20.0,
    max_adapters: Annotated[int, typer.Option(min=1, help="Adapters kept in memory.")] = 64,
    max_stored: Annotated[int, typer.Option(min=1, help="Adapters in the store.")] = 10_000,
    max_images: Annotated[int, typer.Option(min=1, help="Images per request.")] = 256,
    max_rows: Annotated[int, typer.Option(min=1, help="Rows of features per request.")] = 16_384,
    max_pixels: Annotated[int, typer.Option(min=1, help="Pixels per image.")] = 50_000_000,
    max_body_mb: Annotated[int, typer.Option(min=1, help="Size of a request in MiB.")] = 32,
    max_classes: Annotated[int, typer.Option(min=1, help="Classes per adapter.")] = 2_000,
    history_mb: Annotated[
        int, typer.Option(min=1, help="MiB of snapshots and journal per adapter.")
    ] = 64,
    keep_images: Annotated[
        int,
        typer.Option(min=0, help="Last changed images per adapter for the page; 0 keeps none."),
    ] = 0,
    log_level: Annotated[
        str,
        typer.Option(
            "--log-level", help="Least severe messages to log: debug, info, warning or error."
        ),
    ] = "info",
    device: jobs.Device = "cpu",
    precision: jobs.Precision = "fp32",
    ray: Annotated[
        bool, typer.Option("--ray", help="Spread the work over a cluster of Ray Serve.")
    ] = False,
    shards: Annotated[int, typer.Option(min=1, help="With --ray: actors that hold adapters.")] = 2,
    encoders: Annotated[
        int, typer.Option(min=1, help="With --ray: most copies of the encoder, as load demands.")
    ] = 4,
    quiet: Quiet = False,
) -> None:
    """Serve adapters over HTTP.

    A live page is at /, the API at /docs. Every adapter answers, learns and is saved by itself:
    what was acknowledged is in the store, also after a crash. Without --api-key the server listens
    on this machine only, unless --host says otherwise.
    """
    show = screen(ctx, quiet)
    jobs.check_device(device, precision)
    try:
        from bayestta.serve.limits import Limits
        from bayestta.serve.server import Options, serve
    except ModuleNotFoundError as error:
        raise ImportError(
            f"the service needs {error.name}, which is not installed: pip install "
            "'bayestta[serve]'."
        ) from None
    key = api_key
    if api_key_file is not None:
        key = api_key_file.read_text(encoding="utf-8").strip()
    if key is not None and len(key) < 8:
        raise ValueError(f"the API key has {len(key)} characters: give 8 or more.")
    limits = Limits(
        max_batch=max_batch,
        max_delay=max_delay / 1000,
        max_adapters=max_adapters,
        max_stored=max_stored,
        max_images=max_images,
        max_rows=max_rows,
        max_pixels=max_pixels,
        max_body=max_body_mb * MIB,
        max_classes=max_classes,
        history_bytes=history_mb * MIB,
        keep_images=keep_images,
    )
    options = Options(
        host=host,
        port=port,
        key=key,
        url_hosts=tuple(h.strip().lower() for h in (allow_urls or "").split(",") if h.strip()),
        log_level=log_level,
        limits=limits,
    )
    names = None if classes is None else _names(classes)
    if ray:
        from bayestta.serve.cluster import serve_on_ray

        serve_on_ray(
            model,
            store,
            options,
            classes=names,
            shards=shards,
            encoders=encoders,
            device=device,
            precision=precision,
        )
        return
    serve(
        lambda: jobs.open_model(show, model, device=device, precision=precision),
        store,
        options,
        classes=names,
        on_ready=lambda address: print(
            f"Serving {model} at {address} (Ctrl-C ends it)", flush=True
        ),
    )


def _names(classes: str) -> list[str]:
    """Names with commas between them, or the lines of a file."""
    path = Path(classes).expanduser()
    text = path.read_text(encoding="utf-8") if path.is_file() else classes.replace(",", "\n")
    return [line.strip() for line in text.splitlines() if line.strip()]
