"""Test the tuning of an extra head: its start, its training, its scores, and the unchanged model."""

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from opencil.cil.bic import CorrectedModel
from opencil.data.digits import Digits
from opencil.data.images import ImageSet
from opencil.data.transforms import Transform
from opencil.detectors.finetune.augmix import AugMix
from opencil.detectors.finetune.ber import BER
from opencil.detectors.finetune.logitnorm import LogitNorm
from opencil.detectors.finetune.npos import NPOS
from opencil.detectors.finetune.regmix import RegMix
from opencil.detectors.finetune.t2fnorm import T2FNorm
from opencil.detectors.finetune.tuner import Batch, Extra, Tuner, Tuning
from opencil.detectors.finetune.views import ViewSource
from opencil.detectors.finetune.vos import VOS
from opencil.detectors.posthoc.energy import Energy
from opencil.engine import loop
from opencil.engine.arithmetic import Arithmetic
from opencil.engine.device import SideStream
from opencil.engine.forward import Inputs, Outputs, forward
from opencil.engine.iteration import Iteration
from opencil.engine.loop import Checkpoint
from opencil.engine.schedule import Schedule
from opencil.engine.seeding import seeded
from opencil.errors import BadInput
from opencil.nets.model import Model
from opencil.nets.resnet import resnet8
from opencil.registry import DETECTORS

SHORT: dict[str, Any] = {
    "schedule": Schedule(epochs=3, lr=0.05, decay="cosine", weight_decay=5e-4),
    "batch_size": 8,
}
#: All seven, small enough for forty images; the queues are full before the end of the first epoch.
SEVEN: dict[str, Callable[..., Tuner]] = {
    "logitnorm": partial(LogitNorm, **SHORT),
    "t2fnorm": partial(T2FNorm, **SHORT),
    "augmix": partial(AugMix, **SHORT),
    "regmix": partial(RegMix, **SHORT),
    "vos": partial(VOS, queue=6, samples=30, **SHORT),
    "npos": partial(NPOS, queue=6, neighbours=3, boundary=4, perturbations=8, kept=3, **SHORT),
    "ber": partial(BER, **SHORT),
}
TRANSFORM = Transform((0.31, 0.31, 0.31), (0.38, 0.38, 0.38), crop=8, padding=1, flip=False)
every_tuner = pytest.mark.parametrize("name", SEVEN)


def icarl() -> Model:
    return Model(resnet8(), 4)


def bic() -> Model:
    """Two steps of two classes, both with a correction that does something."""
    model = CorrectedModel(resnet8(), [2, 2])
    with torch.no_grad():
        for correction, alpha, beta in zip(model.corrections, (1.5, 0.7), (-0.5, 0.3), strict=True):
            correction.alpha.fill_(alpha)
            correction.beta.fill_(beta)
    return model


MODELS = {make.__name__: make for make in (icarl, bic)}
every_model = pytest.mark.parametrize("kind", MODELS)


def model_of(kind: str) -> Model:
    """A model over four classes with the weights and the statistics of a network that has been trained."""
    with seeded(0, "model"):
        model = MODELS[kind]()
        with torch.no_grad():
            for name, buffer in model.named_buffers():
                if "running" in name:
                    buffer.add_(torch.rand(buffer.shape) / 4)
            for p in model.parameters():
                p.add_(0.02 * torch.randn(p.shape))
    return model.eval()


@pytest.fixture(scope="module")
def digits() -> ImageSet:
    """Ten images of each of the digits 0 to 3."""
    images = Digits().load("train", 8, None)
    chosen = torch.cat([(images.labels == c).nonzero().flatten()[:10] for c in range(4)])
    return ImageSet("few digits", images.images[chosen], images.labels[chosen])


def source_of(
    digits: ImageSet, kind: str = "icarl", memory: bool = True, seed: int = 0, device: str = "cpu"
) -> ViewSource:
    """Digits 2 and 3 are new; of 0 and 1 a few are remembered, or none."""
    chosen = torch.cat([torch.arange(20, 40), torch.tensor([0, 3, 5, 11, 12, 19])[: 6 * memory]])
    images = digits.to(torch.device(device))
    inputs = Inputs(model_of(kind).to(device), images, TRANSFORM, chosen)
    labels = digits.labels[chosen]
    return ViewSource(inputs, labels, labels < 2, seed=(seed, "tune", 2))


def tuned(tuner: Tuner, source: ViewSource) -> Extra:
    tuning = Tuning(tuner, source)
    for _ in tuning.advance():
        pass
    return tuning.extra


def state(module: nn.Module) -> dict[str, Tensor]:
    return {name: tensor.clone() for name, tensor in module.state_dict().items()}


def same(one: dict[str, Tensor], other: dict[str, Tensor]) -> bool:
    return one.keys() == other.keys() and all(torch.equal(t, other[name]) for name, t in one.items())


@every_model
@every_tuner
def test_f_starts_as_a_copy_of_h(digits: ImageSet, kind: str, name: str) -> None:
    source = source_of(digits, kind)
    model = source.inputs.model
    extra = SEVEN[name]().extra(source)
    features = source.features(TRANSFORM.test(digits.images))
    assert torch.equal(extra(features), model.classify(features))
    shared = {p.data_ptr() for p in model.parameters()} & {p.data_ptr() for p in extra.parameters()}
    assert not shared


@every_model
def test_a_fresh_head_differs_and_follows_from_the_seed(digits: ImageSet, kind: str) -> None:
    def fresh(seed: int) -> dict[str, Tensor]:
        return state(LogitNorm(init="fresh").extra(source_of(digits, kind, seed=seed)).head)

    def linear(head: dict[str, Tensor]) -> Tensor:
        return next(t for name, t in head.items() if name.endswith("weight"))

    first = fresh(0)
    torch.manual_seed(4321)  # the global generator has no say
    before = torch.default_generator.get_state()
    assert same(fresh(0), first)
    assert torch.equal(torch.default_generator.get_state(), before)
    copied = state(LogitNorm().extra(source_of(digits, kind)).head)
    assert first.keys() == copied.keys()
    assert not torch.isclose(linear(first), linear(copied)).any()
    assert not torch.isclose(linear(first), linear(fresh(1))).any()
    for name in first:  # BiC's corrections are no part of what is drawn
        if name.endswith(("alpha", "beta")):
            assert torch.equal(first[name], copied[name])


@dataclass
class Watched(Tuner):
    """Cross-entropy on both parts, weighed by a draw; it remembers its batches."""

    def __post_init__(self) -> None:
        self.batches: list[Batch] = []

    def draw(self, iterations: int, batch: int, parts: int, numbers: torch.Generator) -> tuple[Tensor, ...]:
        return torch.rand(iterations, generator=numbers), torch.rand(
            iterations, parts, batch, generator=numbers
        )

    def loss(self, extra: Extra, batch: Batch) -> Tensor:
        self.batches.append(batch)
        weight, _ = batch.drawn
        losses = [F.cross_entropy(extra(views.features), views.labels) for views in batch.parts]
        return weight * sum(losses)


@pytest.mark.parametrize("memory", [False, True])
def test_tuning_is_plain_sgd_with_a_cosine_bit_for_bit(digits: ImageSet, memory: bool) -> None:
    schedule = Schedule(epochs=4, lr=0.1, decay="cosine", weight_decay=5e-4)
    tuner = Watched(schedule=schedule, batch_size=8)
    source = source_of(digits, memory=memory)
    head = tuner.extra(source).head
    trained = tuned(tuner, source).head
    assert len(tuner.batches) == 4 * 3  # 20 current images in batches of 8
    velocity: dict[str, Tensor] = {}
    for i, batch in enumerate(tuner.batches):
        assert len(batch.parts) == 1 + memory
        assert batch.drawn[1].shape == (1 + memory, 8)
        rate = 0.1 * (1 + math.cos(math.pi * (i // 3) / 4)) / 2
        losses = [F.cross_entropy(head(v.features), v.labels) for v in batch.parts]
        head.zero_grad()
        (batch.drawn[0] * sum(losses)).backward()
        with torch.no_grad():
            for name, p in head.named_parameters():
                gradient = p.grad.add(p, alpha=5e-4)
                velocity[name] = velocity[name].mul(0.9).add(gradient) if name in velocity else gradient
                p.add_(velocity[name], alpha=-rate)
    assert same(state(trained), state(head))
    assert len({float(batch.drawn[0]) for batch in tuner.batches}) == 4 * 3, "every epoch draws anew"


@every_tuner
@pytest.mark.parametrize("memory", [False, True])
def test_a_single_new_class_can_be_tuned_on(digits: ImageSet, name: str, memory: bool) -> None:
    """k = 1: no pair of different classes in any batch."""
    chosen = torch.cat([torch.arange(20, 30), torch.arange(10)[: 10 * memory]])
    inputs = Inputs(model_of("icarl"), digits, TRANSFORM, chosen)
    labels = digits.labels[chosen]
    head = tuned(SEVEN[name](), ViewSource(inputs, labels, labels < 2)).head
    assert all(torch.isfinite(p).all() for p in head.parameters())


@every_tuner
def test_corrections_are_applied_and_not_trained(digits: ImageSet, name: str) -> None:
    """BiC: f's logits are α·(W·φ + b) + β of each step's classes, with the model's α and β."""
    source = source_of(digits, "bic")
    model, head = source.inputs.model, tuned(SEVEN[name](), source).head
    corrections = {k: t for k, t in state(model).items() if k.startswith("corrections")}
    assert same(
        {f"corrections.{k.removeprefix('1.')}": t for k, t in state(head).items() if k[0] == "1"}, corrections
    )
    weight, bias = state(head)["0.weight"], state(head)["0.bias"]
    assert not torch.equal(weight, state(model)["head.weight"])
    features = source.features(TRANSFORM.test(digits.images[:5]))
    raw = features @ weight.T + bias
    alpha, beta = (
        torch.stack([corrections[f"corrections.{step}.{which}"] for step in (0, 0, 1, 1)])
        for which in ("alpha", "beta")
    )
    torch.testing.assert_close(head(features), alpha * raw + beta)


def test_alone_or_with_the_others_gives_the_same_bits(digits: ImageSet) -> None:
    """Even where one of them is an epoch ahead, and one has another batch size."""
    makers = {**SEVEN, "other size": lambda: LogitNorm(**SHORT | {"batch_size": 5})}
    alone = {name: state(tuned(make(), source_of(digits))) for name, make in makers.items()}
    shared = source_of(digits)
    together = {name: Tuning(make(), shared) for name, make in makers.items()}
    turns: dict[str, Iterator[Any]] = {name: tuning.advance() for name, tuning in together.items()}
    for _ in range(3):
        next(turns["regmix"])
    while turns:
        turns = {name: turn for name, turn in turns.items() if next(turn, None) is not None}
    for name, tuning in together.items():
        assert same(state(tuning.extra), alone[name]), name


@every_tuner
def test_tuning_resumes_from_a_checkpoint(digits: ImageSet, name: str) -> None:
    """Queues included: the head after all epochs is the same, bit for bit."""
    whole = state(tuned(SEVEN[name](), source_of(digits)))
    tuning = Tuning(SEVEN[name](), source_of(digits))
    progress = next(p for p in tuning.advance() if p.epoch_ends and p.epoch == 2)
    tensors = {n: t.clone() for n, t in Checkpoint.take(tuning.extra, progress).tensors().items()}
    resumed = Tuning(SEVEN[name](), source_of(digits))
    told = [(p.epoch, p.iteration) for p in resumed.advance(Checkpoint.from_tensors(tensors))]
    assert told == [(3, 1), (3, 2), (3, 3)]
    assert same(state(resumed.extra), whole)


@pytest.fixture
def outputs(digits: ImageSet) -> Outputs:
    return forward(model_of("icarl"), digits, TRANSFORM)


@every_tuner
@pytest.mark.parametrize("temperature", [1.0, 2.5])
def test_the_score_is_the_energy_of_f(outputs: Outputs, name: str, temperature: float) -> None:
    """Of features as they are."""
    tuner = replace(SEVEN[name](), temperature=temperature)
    head = nn.Linear(64, 4)
    with seeded(0):
        nn.init.normal_(head.weight)
    tuner.use(head)
    logits = outputs.features.double() @ head.weight.double().T + head.bias.double()
    expected = [
        temperature * math.log(sum(math.exp((v - max(z)) / temperature) for v in z)) + max(z)
        for z in logits.tolist()
    ]
    assert tuner.score(outputs).tolist() == pytest.approx(expected, rel=1e-4, abs=1e-5)
    energy = Energy(temperature=temperature)
    torch.testing.assert_close(energy.score(logits=head(outputs.features)), tuner.score(outputs))
    with pytest.raises(BadInput):
        tuner.score(outputs.features[:, 1:])


def test_t2fnorm_can_score_features_divided_by_tau(outputs: Outputs) -> None:
    scores = {}
    for scored in ("raw", "scaled"):
        tuner = T2FNorm(tau=0.25, scored=scored)
        with seeded(0):
            tuner.use(nn.Linear(64, 4))
        scores[scored] = tuner.score(outputs)
    head = tuner._extra.head
    for scored, factor in (("raw", 1), ("scaled", 4)):
        z = factor * outputs.features.double() @ head.weight.double().T + head.bias.double()
        torch.testing.assert_close(scores[scored].double(), z.exp().sum(dim=1).log(), rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("name", ["ber", "t2fnorm", "vos"])
def test_fitting_is_tuning_on_the_set_up_images(digits: ImageSet, outputs: Outputs, name: str) -> None:
    """``tasks`` determine the old classes; without them all classes are new."""
    model = outputs.inputs.model
    for tasks, old in ((torch.tensor([1, 1, 2, 2]), digits.labels < 2), (None, None)):
        detector = SEVEN[name]().fit(replace(outputs, tasks=tasks))
        source = ViewSource(Inputs(model, digits, TRANSFORM), digits.labels, old)
        tuner = SEVEN[name]()
        tuner.use(tuned(tuner, source).head)
        assert torch.equal(detector.score(outputs), tuner.score(outputs))


gpu = pytest.mark.skipif(not torch.cuda.is_available(), reason="captured steps need a CUDA device")


@gpu
@every_tuner
@pytest.mark.parametrize("memory", [False, True])
def test_captured_and_eager_tuning_agree(
    digits: ImageSet, monkeypatch: pytest.MonkeyPatch, name: str, memory: bool
) -> None:
    """Replay six of nine iterations, with random numbers, queues and learning rates."""
    captures = []

    def trained() -> dict[str, Tensor]:
        source = source_of(digits, memory=memory, device="cuda")
        with SideStream(torch.device("cuda")).active():
            head = {n: t.cpu() for n, t in state(tuned(SEVEN[name](), source)).items()}
        if "queue.slots" in head:
            head["queue.slots"] = head["queue.slots"][:-1]  # the last holds what has no place
        return head

    def counted(iteration: Iteration, inputs: tuple[Tensor, ...], capture: Any = Iteration._capture) -> None:
        captures.append(len(inputs))
        capture(iteration, inputs)

    monkeypatch.setattr(Iteration, "_capture", counted)
    captured = trained()
    assert len(captures) == 1
    monkeypatch.setattr(loop, "Iteration", partial(Iteration, capture=False))
    eager = trained()
    assert len(captures) == 1
    for n, expected in eager.items():
        torch.testing.assert_close(captured[n].float(), expected.float(), rtol=1e-3, atol=1e-4)


@pytest.mark.parametrize(
    "labels",
    [
        torch.arange(20) % 5,
        torch.arange(20) % 3 - 1,
        torch.rand(20),
        torch.rand(20) > 0.5,
        torch.zeros(20, 2, dtype=torch.int64),
    ],
    ids=["too large", "negative", "float", "bool", "two dimensions"],
)
def test_invalid_labels_are_refused(toy: Any, labels: Tensor) -> None:
    outputs = replace(forward(toy, torch.randn(20, 3, 4, 4)), labels=labels)
    with pytest.raises(BadInput):
        DETECTORS.create("logitnorm").fit(outputs)


def test_augmix_refuses_grey_images() -> None:
    class Grey(nn.Module):
        def features(self, images: Tensor) -> Tensor:
            return images.flatten(1)

        def classify(self, features: Tensor) -> Tensor:
            return features[:, :3] * 2

    outputs = replace(forward(Grey(), torch.randn(20, 1, 4, 4)), labels=torch.arange(20) % 3)
    with pytest.raises(BadInput):
        DETECTORS.create("augmix").fit(outputs)
    DETECTORS.create("ber").fit(outputs).score(outputs)


def test_images_without_a_transform_keep_their_range(toy: Any) -> None:
    """They are seen as pixels that fill 0 … 255, and come back as they were but for the steps between."""
    images = torch.randn(20, 3, 4, 4, generator=torch.Generator().manual_seed(0))
    images[[3, 8]] *= torch.tensor([-10.0, 10.0]).view(2, 1, 1, 1)  # the ends are not of the same batch
    scale = ViewSource(Inputs(toy, images, batch_size=5), torch.arange(20) % 4).scale
    pixels = scale.pixels(images)
    assert (float(pixels.min()), float(pixels.max())) == (0, 255)
    step = float(images.max() - images.min()) / 255
    torch.testing.assert_close(scale.normalise(pixels), images, rtol=0, atol=0.51 * step)


@pytest.mark.usefixtures("has_bfloat16")
def test_a_loss_is_run_in_float32_on_features_of_the_trainings_arithmetic(digits: ImageSet) -> None:
    seen: list[tuple[bool, torch.dtype, torch.dtype]] = []

    class Probe(Watched):
        def loss(self, extra: Extra, batch: Batch) -> Tensor:
            for views in batch.parts:
                logits = extra(views.features)
                seen.append((torch.is_autocast_enabled("cpu"), views.features.dtype, logits.dtype))
            return super().loss(extra, batch)

    probe, source = Probe(schedule=Schedule(epochs=1), batch_size=8), source_of(digits)
    source.arithmetic = Arithmetic("bf16")
    tuned(probe, source)
    assert set(seen) == {(False, torch.float32, torch.float32)}
    features = probe.batches[0].current.features
    assert torch.equal(features, features.bfloat16().float())  # rounded, as in training


def test_ber_without_corrections_starts_from_the_linear_layer(digits: ImageSet) -> None:
    source = source_of(digits, "bic")
    weights, features = state(source.inputs.model), torch.rand(5, 64)
    raw = features @ weights["head.weight"].T + weights["head.bias"]
    plain, corrected = (BER(corrected=corrected).extra(source) for corrected in (False, True))
    torch.testing.assert_close(plain(features), raw)
    assert not torch.allclose(corrected(features), raw)
