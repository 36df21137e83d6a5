"""Lives of one server, one after the other: whenever it is killed, the next one starts.

The model is loaded once and the process forked, so that fifty lives take a minute. Each life is a
whole server of its own: uvicorn, socket, lock, journal. Prints the pid of each.
"""

from __future__ import annotations

import os
import signal
import sys
from pathlib import Path

import torch

from bayestta.methods import methods
from bayestta.models.base import load_model
from bayestta.serve.limits import Limits
from bayestta.serve.server import Options, serve


def main() -> None:
    store, port, steps = Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3])
    torch.set_num_threads(1)
    model = load_model("mini-rn")
    methods()  # imported once, here
    limits = Limits(snapshot_steps=steps)
    options = Options(port=port, limits=limits, log_level="error")
    while True:
        child = os.fork()
        if child == 0:
            serve(lambda: model, store, options, on_ready=lambda _: print(os.getpid(), flush=True))
            os._exit(0)
        _, status = os.waitpid(child, 0)
        if not (os.WIFSIGNALED(status) and os.WTERMSIG(status) == signal.SIGKILL):
            return  # it ended politely: the test is over


if __name__ == "__main__":
    main()
