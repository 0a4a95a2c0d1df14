"""The detectors' contract as checks."""

import copy
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from opencil.detectors.detector import Detector, Reads
from opencil.detectors.finetune.tuner import Tuner
from opencil.engine.forward import Inputs, Outputs, forward
from opencil.errors import BadInput
from opencil.evaluation.metrics import ood_metrics
from opencil.registry import DETECTORS

_CLASSES, _WIDTH, _SIDE = 6, 24, 4
_EXTREME = 1e4
#: What a user gives, for what is not given by its own name.
_GIVEN_AS = {"head": "classify", "linear": "classify", "images": "inputs", "layers": "inputs"}


def check_detector(detector: str | Detector) -> None:
    """Run every check on a detector: a registered name, or one that has been made but not set up."""
    for check in DETECTOR_CHECKS.values():
        try:
            check(detector)
        except BadInput as error:
            raise AssertionError(f"{_name(detector)} refuses good samples: {error}") from error


class _Network(nn.Module):
    """A small fixed network whose classes lie along known directions, with normalisation that can drift."""

    def __init__(self) -> None:
        super().__init__()
        random = torch.Generator().manual_seed(0)
        self.layer = nn.Linear(3 * _SIDE * _SIDE, _WIDTH)
        self.norm = nn.BatchNorm1d(_WIDTH)
        self.head = nn.Linear(_WIDTH, _CLASSES)
        self.centres = torch.randn(_CLASSES, 3, _SIDE, _SIDE, generator=random)
        with torch.no_grad():
            self.layer.weight.copy_(torch.randn(self.layer.weight.shape, generator=random) / 7)
            self.layer.bias.zero_()
            self.eval()
            means = F.normalize(self.features(self.centres), dim=1)
            # Not wholly centred: each sample's logits would have one mean, whoever is scored with it.
            self.head.weight.copy_(4 * (means - 0.8 * means.mean(dim=0)))
            self.head.bias.zero_()
        self.filters = torch.randn(8, 3, 3, 3, generator=random) / 5
        self.spread = torch.randn(3 * _SIDE * _SIDE, 2 * _WIDTH, generator=random) / 2

    def features(self, images: Tensor) -> Tensor:
        """f [B, D] ≥ 0."""
        return F.relu(self.norm(self.layer(images.flatten(1))))

    def maps(self, images: Tensor) -> list[Tensor]:
        """Of two stages: the images and what filters see in them, and four pixels whose mean is f."""
        apart = (images.flatten(1) @ self.spread).view(-1, _WIDTH, 2)
        last = self.features(images)[:, :, None] + torch.cat([apart, -apart], dim=2)
        seen = F.relu(F.conv2d(images, self.filters, padding=1))
        return [torch.cat([images, seen], dim=1), last.view(-1, _WIDTH, 2, 2)]

    def last_stage(self, maps: Tensor) -> Tensor:
        """f [B, D] of the images among the first maps."""
        return self.features(maps[:, :3])

    def classify(self, features: Tensor) -> Tensor:
        """z [B, C]."""
        logits: Tensor = self.head(features)
        return logits

    def cosine(self, features: Tensor) -> Tensor:
        """Logits of another head, which is not linear."""
        return 8 * F.normalize(features, dim=1) @ F.normalize(self.head.weight, dim=1).T

    def extra_head(self) -> nn.Module:
        """A copy of the head, to be trained."""
        return copy.deepcopy(self.head).requires_grad_(True)


@dataclass(frozen=True)
class _Blind:
    """The network without its maps."""

    network: _Network

    def features(self, images: Tensor) -> Tensor:
        """f [B, D] ≥ 0."""
        return self.network.features(images)

    def classify(self, features: Tensor) -> Tensor:
        """z [B, C]."""
        return self.network.classify(features)


@dataclass(frozen=True)
class _Samples:
    """Outputs of one network: training samples, ID samples like them, and OOD samples."""

    network: _Network
    setup: Outputs
    test: Outputs
    ood: Outputs


def _samples(setup: int = 0) -> _Samples:
    """Fresh samples, so that a detector which spoils them spoils no other check; ``setup`` or more to fit."""
    network, random = _Network(), torch.Generator().manual_seed(1)

    def near_centres(count: int) -> Outputs:
        labels = torch.arange(count) % _CLASSES
        images = network.centres[labels] + 0.3 * torch.randn(count, 3, _SIDE, _SIDE, generator=random)
        return replace(forward(network, images), labels=labels)

    train, test = near_centres(max(300, _CLASSES * setup)), near_centres(60)
    return _Samples(
        network, train, test, forward(network, 0.5 * torch.randn(60, 3, _SIDE, _SIDE, generator=random))
    )


def _fresh(detector: str | Detector) -> Detector:
    made: Detector = DETECTORS.create(detector) if isinstance(detector, str) else copy.deepcopy(detector)
    return made


def _fitted(detector: str | Detector, setup: Outputs | None = None) -> Detector:
    made = _fresh(detector)
    return made.fit(_samples(made.fewest).setup if setup is None else setup)


def _chosen(outputs: Outputs, rows: Tensor) -> Outputs:
    """Some of the samples, in that order."""
    assert outputs.inputs is not None
    assert isinstance(outputs.inputs.images, Tensor)
    return Outputs(
        outputs.features[rows],
        outputs.logits[rows],
        None if outputs.labels is None else outputs.labels[rows],
        outputs.classify,
        replace(outputs.inputs, images=outputs.inputs.images[rows]),
    )


def _plain(outputs: Outputs) -> dict[str, Any]:
    """Outputs as a user without our training code gives them."""
    return {
        "features": outputs.features,
        "logits": outputs.logits,
        "classify": outputs.classify,
        "inputs": outputs.inputs,
    }


def _same(scores: Tensor, expected: Tensor) -> bool:
    """Equal but for rounding: a product of matrices may add in another order."""
    scale = float(expected.abs().max())
    return scores.shape == expected.shape and torch.allclose(scores, expected, rtol=1e-4, atol=1e-5 * scale)


def _refused(what: str, name: str, call: Callable[..., object], *args: Any, **given: Any) -> None:
    """Assert that a call ends in ``BadInput`` with a message."""
    try:
        call(*args, **given)
    except BadInput as error:
        if not str(error):
            raise AssertionError(
                f"{name} refuses {what} without a word: BadInput needs a sentence"
            ) from error
    except Exception as error:
        raise AssertionError(
            f"{name} should refuse {what} with BadInput, and raises {type(error).__name__}: {error}"
        ) from error
    else:
        raise AssertionError(f"{name} should refuse {what} with BadInput, and takes it")


def _name(detector: str | Detector) -> str:
    return detector if isinstance(detector, str) else type(detector).__name__


def _scored(detector: str | Detector, made: Detector, outputs: Outputs, where: str = "") -> Tensor:
    """Scores of samples that every detector must be able to score."""
    try:
        return made.score(outputs)
    except BadInput as error:
        raise AssertionError(f"{_name(detector)} cannot score good samples{where}: {error}") from error


def check_larger_is_id(detector: str | Detector) -> None:
    """ID samples near the set-up samples score higher than noise."""
    samples, made = _samples(), _fitted(detector)
    auc = ood_metrics(made.score(samples.test), made.score(samples.ood)).auc
    assert auc > 0.7, (
        f"{_name(detector)} does not score easy ID samples above noise (AUC {auc:.2f}): "
        "a larger score must mean more in-distribution"
    )


def check_result(detector: str | Detector) -> None:
    """Scores are finite, float32, one for each sample, without a gradient."""
    test = _samples().test
    scores = _scored(detector, _fitted(detector), test)
    assert scores.dtype == torch.float32, f"{_name(detector)} scores in {scores.dtype}: float32 is promised"
    assert scores.shape == (len(test),), (
        f"{_name(detector)} gives scores of shape {list(scores.shape)} for {len(test)} samples: "
        f"[{len(test)}] is promised"
    )
    assert not scores.requires_grad, f"{_name(detector)} gives scores that keep a gradient graph alive"


def check_batch_size(detector: str | Detector) -> None:
    """A sample's score does not depend on which samples are scored with it."""
    test, made = _samples().test, _fitted(detector)
    whole = made.score(test)
    for size in (1, 7):
        parts = [made.score(_chosen(test, rows)) for rows in torch.split(torch.arange(len(test)), size)]
        assert _same(torch.cat(parts), whole), (
            f"{_name(detector)} scores {len(test)} samples differently when it gets {size} at a time: "
            "a score must not depend on the other samples"
        )


def check_order(detector: str | Detector) -> None:
    """Samples in another order get the same scores in that order."""
    test, made = _samples().test, _fitted(detector)
    order = torch.randperm(len(test), generator=torch.Generator().manual_seed(2))
    assert _same(made.score(_chosen(test, order)), made.score(test)[order]), (
        f"{_name(detector)} scores samples differently in another order"
    )


def check_repeatable(detector: str | Detector) -> None:
    """The same set-up and samples give the same scores, in the same process and with other random states."""
    test = _samples().test
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(3)
        made = _fitted(detector)
        first, again = made.score(test), made.score(test)
        torch.manual_seed(4)
        other = _fitted(detector).score(test)
    assert torch.equal(first, again), f"{_name(detector)} scores the same samples differently a second time"
    assert torch.equal(first, other), (
        f"{_name(detector)} scores differently after the same set-up: random choices need a seed of their own"
    )


def check_plain_tensors(detector: str | Detector) -> None:
    """Plain tensors, as a user without our training code has them, give the same scores as ``Outputs``."""
    samples, made = _samples(), _fitted(detector)
    setup, labels = _samples(made.fewest).setup, _samples(made.fewest).setup.labels
    plain = _fresh(detector).fit(**_plain(setup), labels=labels).score(**_plain(samples.test))
    assert torch.equal(plain, made.score(samples.test)), (
        f"{_name(detector)} scores plain tensors differently from the same tensors in Outputs"
    )


def check_inputs_unchanged(detector: str | Detector) -> None:
    """Neither tensors nor the network are changed by ``fit`` and ``score``; parameters get no gradient."""
    made = _fresh(detector)
    samples = _samples(made.fewest)
    before = copy.deepcopy([_tensors(samples.setup), _tensors(samples.test), samples.network.state_dict()])
    samples.network.train()
    samples.network.norm.eval()  # modes are the user's own, module by module
    modes, random = _modes(samples.network), torch.get_rng_state()
    made.fit(samples.setup).score(samples.test)
    assert _modes(samples.network) == modes, (
        f"{_name(detector)} leaves the network in another mode, or with other parameters frozen"
    )
    assert torch.equal(torch.get_rng_state(), random), (
        f"{_name(detector)} changes torch's global random state: use a generator of its own"
    )
    after = [_tensors(samples.setup), _tensors(samples.test), samples.network.state_dict()]
    places = ("the set-up samples'", "the scored samples'", "the network's")
    for place, old, new in zip(places, before, after, strict=True):
        for key, tensor in old.items():
            assert torch.equal(tensor, new[key]), f"{_name(detector)} changes {place} {key}"
    for key, parameter in samples.network.named_parameters():
        assert parameter.grad is None, f"{_name(detector)} leaves a gradient on the network's {key}"


def _modes(network: nn.Module) -> list[bool]:
    return [m.training for m in network.modules()] + [p.requires_grad for p in network.parameters()]


def _tensors(outputs: Outputs) -> dict[str, Tensor]:
    assert outputs.inputs is not None
    assert outputs.labels is not None
    assert isinstance(outputs.inputs.images, Tensor)
    return {
        "features": outputs.features,
        "logits": outputs.logits,
        "labels": outputs.labels,
        "images": outputs.inputs.images,
    }


def check_reads(detector: str | Detector) -> None:
    """What the detector says it reads is enough: given nothing else, it scores the same."""
    made = _fitted(detector)

    def only(outputs: Outputs, reads: frozenset[Reads]) -> dict[str, Any]:
        given = {_GIVEN_AS.get(read, read) for read in reads}
        return {name: value for name, value in _plain(outputs).items() if name in given}

    samples, setup = _samples(), _samples(made.fewest).setup
    # A head that is read may be given to either of the two.
    to_set_up = only(setup, made.reads_to_set_up | (made.reads & {"head"}))
    try:
        fresh = _fresh(detector).fit(**to_set_up, labels=setup.labels)
        scores = fresh.score(**only(samples.test, made.reads))
    except Exception as error:
        raise AssertionError(
            f"{_name(detector)} fails where it is given only {', '.join(sorted(made.reads))}: {error}"
        ) from error
    assert _same(scores, made.score(samples.test)), (
        f"{_name(detector)} scores differently when it is given only what it says it reads"
    )


def check_refit(detector: str | Detector) -> None:
    """A second set-up replaces the first."""
    made = _fitted(detector)
    samples = _samples(made.fewest)
    once = made.score(samples.test)
    made.fit(_chosen(samples.setup, torch.arange(len(samples.setup) - 1, -1, -1))).fit(samples.setup)
    assert _same(made.score(samples.test), once), (
        f"{_name(detector)} scores differently after it has been set up again on the same samples"
    )


def check_extreme_logits(detector: str | Detector) -> None:
    """Scores stay finite on logits of ±1e4, in the scored samples and in the set-up samples."""
    made = _fresh(detector)
    samples = _samples(made.fewest)
    network = copy.deepcopy(samples.network)
    with torch.no_grad():
        scale = _EXTREME / float(samples.setup.logits.abs().max())
        network.head.weight.mul_(scale)
    extreme = forward(network, _images(samples.test))
    for what, setup in (
        ("", samples.setup),
        (
            " after a set-up on such logits",
            replace(forward(network, _images(samples.setup)), labels=samples.setup.labels),
        ),
    ):
        _scored(detector, _fitted(detector, setup), extreme, f" with logits of ±{_EXTREME:g}{what}")


def _images(outputs: Outputs) -> Tensor:
    assert outputs.inputs is not None
    assert isinstance(outputs.inputs.images, Tensor)
    return outputs.inputs.images


def check_not_a_number(detector: str | Detector) -> None:
    """NaN and infinity in what is read are refused, by ``score`` and, where there is a set-up, by ``fit``."""
    made, name = _fitted(detector), _name(detector)

    def score(read: str, value: float) -> None:
        made.score(_spoilt(_samples().test, read, value))

    def fit(read: str, value: float) -> None:
        _fitted(detector, _spoilt(_samples(made.fewest).setup, read, value))

    for value in (torch.nan, torch.inf):
        for read in sorted(made.reads - {"head", "linear"}):
            _refused(f"{read} with {value}", name, score, read, value)
        for read in sorted(made.reads_to_set_up - {"labels", "linear"}) if made.needs_setup else ():
            _refused(f"{read} with {value} to be set up on", name, fit, read, value)


def _spoilt(outputs: Outputs, read: str, value: float) -> Outputs:
    """The outputs with one value of what is read replaced."""
    if _GIVEN_AS.get(read) == "inputs":
        images = _images(outputs).clone()
        images[1, 0, 0, 0] = value
        assert outputs.inputs is not None
        return replace(outputs, inputs=replace(outputs.inputs, images=images))
    tensor = (outputs.features if read == "features" else outputs.logits).clone()
    tensor[1, 0] = value
    return replace(outputs, features=tensor) if read == "features" else replace(outputs, logits=tensor)


def check_missing_setup(detector: str | Detector) -> None:
    """A detector that needs a set-up refuses to score before it."""
    made = _fresh(detector)
    if made.needs_setup:
        _refused("samples before it is set up", _name(detector), made.score, _samples().test)


def check_missing_reads(detector: str | Detector) -> None:
    """What is read must be given, by a network that has it."""
    made, name = _fresh(detector), _name(detector)
    samples = _samples(made.fewest)
    setup, test = samples.setup, samples.test
    at_set_up = "linear" in made.reads_to_set_up and made.needs_setup
    if at_set_up:
        _refused("set-up samples without a head", name, _fresh(detector).fit, replace(setup, classify=None))
    if made.needs_setup:
        made.fit(setup if at_set_up else replace(setup, classify=None))
    for read in sorted(made.reads - ({"head", "linear"} if at_set_up else set())):  # a head is given once
        given = {k: v for k, v in _plain(test).items() if k != _GIVEN_AS.get(read, read)}
        _refused(f"samples without {read}", name, made.score, **given)

    def fit_and_score(change: Callable[[Outputs], Outputs]) -> None:
        _fresh(detector).fit(change(setup)).score(change(test))

    if "linear" in made.reads | made.reads_to_set_up:
        _refused("a cosine head", name, fit_and_score, lambda o: replace(o, classify=samples.network.cosine))
    if "layers" in made.reads | made.reads_to_set_up:
        blind = _Blind(samples.network)
        _refused(
            "a network without maps",
            name,
            fit_and_score,
            lambda o: replace(o, inputs=Inputs(blind, _images(o))),
        )


def check_wrong_shapes(detector: str | Detector) -> None:
    """Tensors of other shapes, or of other widths than the set-up's, are refused."""
    made, test = _fitted(detector), _samples().test
    for read in sorted(made.reads & {"features", "logits"}):
        tensor = _plain(test)[read]
        wrong = {
            f"{read} of one dimension": tensor[:, 0],
            f"{read} of three dimensions": tensor[:, :, None],
            f"integer {read}": tensor.long(),
            f"{read} of no samples": tensor[:0],
            f"{read} of another number of samples": tensor[:-1],
        }
        if made.needs_setup:
            wrong[f"{read} of another width than the set-up's"] = tensor[:, :-1]
        for what, value in wrong.items():
            _refused(what, _name(detector), made.score, **_plain(test) | {read: value})
    if made.reads & {"images", "layers"}:

        def score(images: Tensor) -> None:
            made.score(inputs=Inputs(_samples().network, images))

        _refused("images of three dimensions", _name(detector), score, _images(test)[:, 0])
        _refused("images of bytes", _name(detector), score, _images(test).byte())


def check_fewest(detector: str | Detector) -> None:
    """A set-up on as few samples as the detector says works, on one fewer is refused."""
    made = _fresh(detector)
    if not made.needs_setup:
        return
    setup = _samples(made.fewest).setup
    assert setup.labels is not None
    setup = _chosen(setup, setup.labels.argsort(stable=True))  # class after class: some need enough of each
    if made.fewest > 1:
        fewer = _chosen(setup, torch.arange(made.fewest - 1))
        _refused(f"{made.fewest - 1} set-up samples", _name(detector), _fitted, detector, fewer)
    try:
        _fitted(detector, _chosen(setup, torch.arange(made.fewest))).score(_samples().test)
    except Exception as error:
        raise AssertionError(
            f"{_name(detector)} says that {made.fewest} set-up samples are enough, and fails on them: {error}"
        ) from error


def check_by_task(detector: str | Detector) -> None:
    """By task, scores are its own, standardised by those of the predicted task's samples in the memory."""
    own, name = _fresh(detector), _name(detector)
    samples = _samples(own.fewest)
    tasks = torch.arange(_CLASSES) // 2 + 1
    # Noise for a memory: set-up samples may all score alike, as each is its own neighbour, or surely known.
    labels = torch.arange(len(samples.ood)) % _CLASSES
    setup, test, memory = samples.setup, samples.test, replace(samples.ood, labels=labels, tasks=tasks)
    own.fit(replace(setup, tasks=tasks))
    by_task = copy.deepcopy(own)
    by_task.by_task = True
    _refused("samples by task before it knows what each scores", name, by_task.score, test)
    _refused("by task, set-up samples without tasks", name, by_task.fit, setup)
    by_task.complete(setup, memory)
    of_memory, expected = own.score(memory).double(), own.score(test).double()
    predicted = tasks[test.logits.argmax(dim=1)]
    for task in torch.unique(tasks):
        of_task = of_memory[tasks[labels] == task]
        rows = predicted == task
        expected[rows] = (expected[rows] - of_task.mean()) / of_task.std()
    assert _same(by_task.score(test), expected.float()), (
        f"{name} by task gives other scores than its own, standardised by the samples of the predicted task"
    )


def check_scored_by(detector: str | Detector) -> None:
    """A tuner's head can be scored by another detector: by the same one, with its logits and head given."""
    made, name = _fresh(detector), _name(detector)
    if not isinstance(made, Tuner):
        return
    samples = _samples(made.fewest)
    made.fit(samples.setup)
    for scored_by in ("energy", "react", "nnguide"):
        composed = copy.deepcopy(made)
        composed.scored_by = scored_by
        composed.__dict__.pop("scorer", None)
        composed.complete(samples.setup)
        own: list[dict[str, Any]] = [
            {"features": o.features, "logits": made.logits(made._extra, o.features)}
            for o in (samples.setup, samples.test)
        ]
        alone: Detector = DETECTORS.create(scored_by)
        alone.fit(**own[0], classify=partial(made.logits, made._extra))
        assert _same(composed.score(samples.test), alone.score(**own[1])), (
            f"{name} scored by {scored_by} gives other scores than {scored_by} on its head's logits"
        )


#: Every check of the detectors' contract, by name.
DETECTOR_CHECKS: dict[str, Callable[[str | Detector], None]] = {
    check.__name__.removeprefix("check_"): check
    for check in (
        check_result,
        check_larger_is_id,
        check_batch_size,
        check_order,
        check_repeatable,
        check_plain_tensors,
        check_reads,
        check_refit,
        check_inputs_unchanged,
        check_extreme_logits,
        check_not_a_number,
        check_missing_setup,
        check_missing_reads,
        check_wrong_shapes,
        check_fewest,
        check_by_task,
        check_scored_by,
    )
}
