"""Time the metrics beside scikit-learn's three functions, on the same scores, in the same run.

    python benchmarks/metrics.py [--detectors 16] [--datasets 6] [--scores 60000] [--threads 1]

16 detectors × 6 datasets × 60,000 scores (10,000 ID and 50,000 OOD). scikit-learn: roc_auc_score, roc_curve
(for FPR at 95 % TPR) and average_precision_score. Both use one thread, and take turns, pair by pair, so that
other load on the machine slows both.
"""

import argparse
import time

import numpy as np
import torch
from sklearn.metrics import average_precision_score, roc_auc_score, roc_curve

from opencil import ood_metrics

ID_SHARE = 1 / 6


def of_scikit_learn(labels: np.ndarray, scores: np.ndarray) -> tuple[float, float, float]:
    fpr, tpr, _ = roc_curve(labels, scores, drop_intermediate=False)
    auc, ap = roc_auc_score(labels, scores), average_precision_score(1 - labels, -scores)
    return auc, fpr[np.argmax(tpr >= 0.95)], ap


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--detectors", type=int, default=16)
    parser.add_argument("--datasets", type=int, default=6)
    parser.add_argument("--scores", type=int, default=60_000)
    parser.add_argument("--threads", type=int, default=1)
    arguments = parser.parse_args()
    torch.set_num_threads(arguments.threads)

    random = torch.Generator().manual_seed(0)
    ids = round(arguments.scores * ID_SHARE)
    pairs = []
    for i in range(arguments.detectors * arguments.datasets):
        inside = torch.randn(ids, generator=random) + i % 4
        outside = torch.randn(arguments.scores - ids, generator=random)
        # Every fourth pair is rounded: it has ties.
        pairs.append(
            (inside.round(decimals=2), outside.round(decimals=2)) if i % 4 == 3 else (inside, outside)
        )
    ood_metrics(*pairs[0])

    labels = np.r_[np.ones(ids), np.zeros(arguments.scores - ids)]
    our_seconds = peer_seconds = 0.0
    ours, peers = [], []
    for pair in pairs:
        started = time.perf_counter()
        ours.append(ood_metrics(*pair))
        between = time.perf_counter()
        peers.append(of_scikit_learn(labels, torch.cat(pair).numpy()))
        our_seconds, peer_seconds = (
            our_seconds + between - started,
            peer_seconds + time.perf_counter() - between,
        )

    difference = max(
        abs(a - b)
        for m, peer in zip(ours, peers, strict=True)
        for a, b in zip((m.auc, m.fpr, m.ap), peer, strict=True)
    )
    print(f"{arguments.detectors} detectors x {arguments.datasets} datasets x {arguments.scores:,} scores")
    print(f"opencil       {our_seconds:7.3f} s   {our_seconds / len(pairs) * 1e3:6.2f} ms a pair")
    print(f"scikit-learn  {peer_seconds:7.3f} s   {peer_seconds / len(pairs) * 1e3:6.2f} ms a pair")
    print(f"{peer_seconds / our_seconds:.1f} times as fast; largest difference {difference:.1e}")


if __name__ == "__main__":
    main()
