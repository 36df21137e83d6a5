"""Statistics and discriminant step, shared covariance, against the released formulation.

Both run here, one after the other, on the same features, and their ratio is what counts. The
released formulation is written out from its description, in float32 as it runs there: deviations
(B,K,D) of every sample from every old mean, their soft-weighted outer products, and a
pseudo-inverse and a determinant for each class, of K identical matrices. Without `--full` that
last part is measured on a few classes and scaled linearly to K; the output says so.

    python benchmarks/gda.py [--full] [--out gda.json]
"""

from __future__ import annotations

import argparse
import json
import math
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from bayestta.maths.covariance import shrink
from bayestta.maths.discriminant import log_discriminant
from bayestta.maths.stats import GaussianStats

TARGET_RATIO, TARGET_BYTES = 0.03, 50 * 10**6
RIDGE, SIGMA = 1e-4, 0.1  # of the released code


def features(B: int, D: int, K: int) -> tuple[Tensor, Tensor, Tensor]:
    """Text prototypes (K,D) and image features (B,D) of unit norm, responsibilities (B,K)."""
    g = torch.Generator().manual_seed(0)
    text = torch.nn.functional.normalize(torch.randn(K, D, generator=g), dim=1)
    gap = torch.nn.functional.normalize(torch.randn(1, D, generator=g), dim=1)
    own = text[torch.randint(K, (B,), generator=g)]
    noise = torch.randn(B, D, generator=g) / math.sqrt(D)
    z = torch.nn.functional.normalize(0.3 * own + gap + 0.6 * noise, dim=1)
    return text, z, (100 * z @ text.T).softmax(1)


# --- ours ---


def ours(stats: GaussianStats, z: Tensor, r: Tensor) -> Tensor:
    stats.update(z, r)
    cov = shrink(stats.covariance(), 0.3)
    return log_discriminant(z, stats.mean, cov, stats.proportion.log())


def ours_truncated(stats: GaussianStats, z: Tensor, r: Tensor) -> Tensor:
    """The same settings as the released formulation, pseudo-inverse included."""
    stats.update(z, r)
    cov, K = shrink(stats.covariance(), RIDGE, SIGMA**2), len(stats.mean)
    rtol = z.shape[1] * torch.finfo(torch.float32).eps
    prior = torch.full((K,), -math.log(K))
    return log_discriminant(z, stats.mean, cov, prior, rtol=rtol)


# --- the released formulation ---


def released_statistics(state: dict[str, Tensor], z: Tensor, r: Tensor) -> Tensor:
    """Updates count, mean, scatter and total in place; returns the regularised covariance."""
    D = z.shape[1]
    n = r.sum(0)
    deviation = z[:, None, :] - state["mean"][None]  # (B,K,D), from the old mean
    weighted = r[:, :, None] * deviation  # (B,K,D)
    state["scatter"] += weighted.reshape(-1, D).T @ deviation.reshape(-1, D)
    state["total"] += len(z)
    above = state["count"][:, None] * state["mean"] + r.T @ z
    state["mean"] = above / (state["count"] + n + 1e-8)[:, None]
    state["count"] = state["count"] + n
    return (1 - RIDGE) * state["scatter"] / state["total"] + RIDGE * SIGMA**2 * torch.eye(D)


def released_scores(state: dict[str, Tensor], cov: Tensor, z: Tensor, classes: int) -> Tensor:
    """Scores of the first classes, with a pseudo-inverse and a determinant for each."""
    K = len(state["mean"])
    deviation = z[:, None, :] - state["mean"][None]  # (B,K,D)
    columns = []
    for k in range(classes):
        inverse = torch.linalg.pinv(cov)
        half = torch.linalg.cholesky(cov).diagonal().log().sum()
        distance = ((deviation[:, k] @ inverse) * deviation[:, k]).sum(1)
        columns.append(-0.5 * distance - half - math.log(K))
    return torch.stack(columns, dim=1)


def released_state(text: Tensor) -> dict[str, Tensor]:
    K, D = text.shape
    return {
        "mean": text.clone(),
        "count": torch.ones(K),
        "scatter": torch.zeros(D, D),
        "total": torch.zeros(()),
    }


# --- measuring ---


def seconds(step: Callable[[], Any]) -> tuple[float, Any]:
    start = time.perf_counter()
    made = step()
    return time.perf_counter() - start, made


def median(step: Callable[[], Any], repeat: int) -> float:
    step()  # the first call loads libraries
    return statistics.median(seconds(step)[0] for _ in range(repeat))


def resident(field: str) -> int:
    """Bytes of VmRSS or VmHWM, now and at the peak (getrusage would inherit the parent's peak)."""
    with open("/proc/self/status") as file:
        return next(1024 * int(line.split()[1]) for line in file if line.startswith(field))


def extra_peak_bytes(B: int, D: int, K: int) -> int:
    """In this process: what our step, its state included, adds to the resident memory at its peak.

    An upper bound: the peak from before the step, that of the imports, is not taken off.
    """
    text, z, r = features(B, D, K)
    small = features(4, 8, 3)
    ours(GaussianStats(small[0]), small[1], small[2])  # loads libraries, keeps no large block
    before = resident("VmRSS")
    ours(GaussianStats(text), z, r)
    return resident("VmHWM") - before


def measure(args: argparse.Namespace) -> dict[str, Any]:
    B, D, K = args.batch_size, args.features, args.classes
    text, z, r = features(B, D, K)
    measured = K if args.full else min(K, args.measured)

    stats, truncated = GaussianStats(text), GaussianStats(text, centre="old", epsilon=1e-8)
    agreement = ours_truncated(truncated, z, r)[:, :measured]
    found = {
        "ours": median(lambda: ours(stats, z, r), args.repeat),
        "ours_truncated": median(lambda: ours_truncated(truncated, z, r), args.repeat),
    }
    state = released_state(text)
    update, cov = seconds(lambda: released_statistics(state, z, r))
    torch.linalg.pinv(cov[:8, :8])
    scores, literal = seconds(lambda: released_scores(state, cov, z, measured))
    found["released"] = update + scores * K / measured
    command = [sys.executable, __file__, "--memory-only", "--threads", str(args.threads)]
    command += ["--batch-size", str(B), "--features", str(D), "--classes", str(K)]
    peak = int(subprocess.run(command, check=True, capture_output=True, text=True).stdout)
    return {
        "benchmark": "gda",
        "batch_size": B,
        "features": D,
        "classes": K,
        "threads": args.threads,
        "torch": torch.__version__,
        "repeat": args.repeat,
        "seconds": {**found, "released_statistics": update, "released_scores_measured": scores},
        "released_classes_measured": measured,
        "ratio": found["ours"] / found["released"],
        "ratio_truncated": found["ours_truncated"] / found["released"],
        "difference": float((agreement - literal).abs().max() / literal.abs().max()),
        "extra_peak_bytes": peak,
        "target": {"ratio": TARGET_RATIO, "extra_peak_bytes": TARGET_BYTES},
    }


def table(result: dict[str, Any]) -> str:
    took, K = result["seconds"], result["classes"]
    measured, peak = result["released_classes_measured"], result["extra_peak_bytes"]
    how = "measured in full, once"
    if measured < K:
        how = f"inverses of {measured} classes measured, scaled to {K}"

    def verdict(met: bool) -> str:
        return "met" if met else "MISSED"

    rows = [
        ("released, literal", f"{took['released']:9.3f} s", how),
        (
            "bayestta, Cholesky",
            f"{took['ours']:9.3f} s",
            f"{result['ratio']:.2%} of the released time, target below {TARGET_RATIO:.0%}: "
            + verdict(result["ratio"] < TARGET_RATIO),
        ),
        (
            "bayestta, truncated",
            f"{took['ours_truncated']:9.3f} s",
            f"{result['ratio_truncated']:.2%}; differs from the literal scores by "
            f"{result['difference']:.0e} of the largest",
        ),
        (
            "extra peak memory",
            f"{peak / 1e6:9.1f} MB",
            f"at most; target below {TARGET_BYTES / 1e6:.0f} MB: " + verdict(peak < TARGET_BYTES),
        ),
    ]
    head = (
        f"Statistics and discriminants, shared covariance: B={result['batch_size']}, "
        f"D={result['features']}, K={K}; {result['threads']} thread(s), torch {result['torch']}, "
        f"median of {result['repeat']}"
    )
    return "\n".join([head, *(f"  {name:<20}{value}   {note}" for name, value, note in rows)])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0] if __doc__ else None)
    parser.add_argument(
        "--full", action="store_true", help="invert for every class (half a minute)"
    )
    parser.add_argument("--measured", type=int, default=8, help="classes to invert for otherwise")
    parser.add_argument("--repeat", type=int, default=5)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--batch-size", type=int, default=128)
    parser.add_argument("--features", type=int, default=512)
    parser.add_argument("--classes", type=int, default=397)
    parser.add_argument("--out", help="write the numbers to this JSON file")
    parser.add_argument("--memory-only", action="store_true", help=argparse.SUPPRESS)
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    if args.memory_only:
        print(extra_peak_bytes(args.batch_size, args.features, args.classes))
        return
    result = measure(args)
    print(table(result))
    if args.out:
        with open(args.out, "w") as file:
            json.dump(result, file, indent=2)
            file.write("\n")


if __name__ == "__main__":
    main()
