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
    (
        "detectors/finetune/augmix.py",
        "count = len(drawn[0])",
        "0 is 1",
        "each of the drawn tensors has a row for every iteration",
    ),
    (
        "detectors/posthoc/openmax.py",
        "low, high = torch.full_like(mean, -5.0), torch.full_like(mean, 20.0)",
        "5.0 is 10.0",
        "a shape below e^-5 needs logarithms 148 apart: those of float32 logits, moved, are at most 80 apart",
    ),
    (
        "detectors/posthoc/rankfeat.py",
        "trace = power.diagonal(dim1=1, dim2=2).sum(dim=1)[:, None, None]",
        "sum is mean",
        "a scale that keeps squares in range: the direction is normalised at the end",
    ),
    (
        "detectors/posthoc/residual.py",
        "_ROUNDING = 1e-12",
        "1e-12 is 2e-12",
        "a tolerance between roundings and what is none: twice it is one too",
    ),
    (
        "detectors/posthoc/tempscale.py",
        "for _ in range(40):",
        "40 is 39",
        "the range of log T, 4.6, halved 39 times is 8e-12: float32 scores round by more",
    ),
    (
        "detectors/posthoc/vim.py",
        "_NOTHING = 1e-6",
        "1e-06 is 2e-06",
        "a tolerance between roundings and what is none: twice it is one too",
    ),
    (
        "cil/foster.py",
        "weights = (1 - beta) / (1 - beta ** counts.double())",
        "1 is 0",
        "of 1 - beta, a factor of all weights that their mean takes out; without the other 1 tests fail",
    ),
    (
        "cil/foster.py",
        "weights = (1 - beta) / (1 - beta ** counts.double())",
        "Sub is Add",
        "of 1 - beta, a factor of all weights that their mean takes out; with the other tests fail",
    ),
    (
        "detectors/finetune/augmix_operations.py",
        "height, width = images.shape[-2:]",
        "USub is UAdd",
        "images have four axes, of which the last two are also those from the second on",
    ),
    (
        "detectors/finetune/views.py",
        "if ranks is None or len(images) < ranks.size:",
        "Lt is LtE",
        "one image a rank is shared or is not: features are the same, and so is who has them",
    ),
    (
        "detectors/posthoc/relation.py",
        "return (relation if self.power == 1 else relation.pow_(self.power)).sum(dim=1)",
        "never",
        "the first power of a number is the number: that it is not computed saves time alone",
    ),
    (
        "detectors/posthoc/tpl.py",
        "_AT_MEAN = 1e-6",
        "1e-06 is 2e-06",
        "a tolerance between roundings and what is none: twice it is one too",
    ),
]
