# Made of the registry by tests/test_creating.py: run that to bring it up to date.

from collections.abc import Mapping
from typing import Any, Literal, overload

from opencil.cil.acil import ACIL
from opencil.cil.bic import BiC
from opencil.cil.der import DER
from opencil.cil.er_ace import ERACE
from opencil.cil.ewc import EWC
from opencil.cil.fecam import FeCAM
from opencil.cil.fetril import FeTrIL
from opencil.cil.finetune import Finetune
from opencil.cil.foster import FOSTER
from opencil.cil.icarl import ICaRL
from opencil.cil.joint import Joint
from opencil.cil.learner import Learner
from opencil.cil.lucir import LUCIR
from opencil.cil.lwf import LwF
from opencil.cil.memo import MEMO
from opencil.cil.podnet import PODNet
from opencil.cil.ranpac import RanPAC
from opencil.cil.replay import Replay
from opencil.cil.simplecil import SimpleCIL
from opencil.cil.ss_il import SSIL
from opencil.cil.wa import WA
from opencil.detectors.detector import Detector
from opencil.detectors.finetune.augmix import AugMix
from opencil.detectors.finetune.ber import BER
from opencil.detectors.finetune.logitnorm import LogitNorm
from opencil.detectors.finetune.more import MORE
from opencil.detectors.finetune.npos import NPOS
from opencil.detectors.finetune.oe import OE
from opencil.detectors.finetune.regmix import RegMix
from opencil.detectors.finetune.t2fnorm import T2FNorm
from opencil.detectors.finetune.vos import VOS
from opencil.detectors.posthoc.ash import ASH
from opencil.detectors.posthoc.dice import DICE
from opencil.detectors.posthoc.energy import Energy
from opencil.detectors.posthoc.entropy import Entropy
from opencil.detectors.posthoc.fdbd import FDBD
from opencil.detectors.posthoc.gen import GEN
from opencil.detectors.posthoc.gradnorm import GradNorm
from opencil.detectors.posthoc.gram import Gram
from opencil.detectors.posthoc.klm import KLM
from opencil.detectors.posthoc.knn import KNN
from opencil.detectors.posthoc.logitgap import LogitGap
from opencil.detectors.posthoc.lts import LTS
from opencil.detectors.posthoc.mahalanobis import Mahalanobis
from opencil.detectors.posthoc.maxlogit import MaxLogit
from opencil.detectors.posthoc.msp import MSP
from opencil.detectors.posthoc.nci import NCI
from opencil.detectors.posthoc.neco import NECO
from opencil.detectors.posthoc.nnguide import NNGuide
from opencil.detectors.posthoc.odin import ODIN
from opencil.detectors.posthoc.openmax import OpenMax
from opencil.detectors.posthoc.pnml import PNML
from opencil.detectors.posthoc.rankfeat import RankFeat
from opencil.detectors.posthoc.react import ReAct
from opencil.detectors.posthoc.relation import Relation
from opencil.detectors.posthoc.relative_mahalanobis import RelativeMahalanobis
from opencil.detectors.posthoc.residual import Residual
from opencil.detectors.posthoc.scale import SCALE
from opencil.detectors.posthoc.she import SHE
from opencil.detectors.posthoc.tempscale import TempScale
from opencil.detectors.posthoc.tpl import TPL
from opencil.detectors.posthoc.vim import ViM
from opencil.detectors.posthoc.vra import VRA

@overload
def create_detector(
    name: Literal["ash"],
    *,
    variant: Literal["p", "b", "s"] = "s",
    percentile: float = 65.0,
    by_task: bool = False,
) -> ASH:
    """Energy of a sample's largest features alone: as they are (P), all alike (B) or scaled up (S)."""

@overload
def create_detector(
    name: Literal["augmix"],
    *,
    schedule: Mapping[str, Any] = ...,
    batch_size: int = 128,
    init: Literal["copy", "fresh"] = "copy",
    temperature: float = 1.0,
    weight: float = 12.0,
    severity: float = 1.0,
    width: int = 3,
    depth: int = 0,
    concentration: float = 1.0,
    rule: Literal["torchvision", "original"] = "torchvision",
    by_task: bool = False,
    scored_by: str | Mapping[str, Any] | None = None,
    head_of: str | None = None,
) -> AugMix:
    """A head trained by CE on clean images and to predict alike on two augmented views of each."""

@overload
def create_detector(
    name: Literal["ber"],
    *,
    schedule: Mapping[str, Any] = ...,
    batch_size: int = 128,
    init: Literal["copy", "fresh"] = "copy",
    temperature: float = 1.0,
    alpha: float = 0.1,
    margins: Literal["fixed", "model"] = "fixed",
    margin_in: float = -27.0,
    margin_out: float = -5.0,
    nter: bool = True,
    oter: bool = True,
    concentration: float = 1.0,
    share: float = 0.002,
    by_task: bool = False,
    scored_by: str | Mapping[str, Any] | None = None,
    head_of: str | None = None,
) -> BER:
    """New-task mixtures pushed up in energy (NTER), memory with a breath of new images pushed down (OTER)."""

@overload
def create_detector(
    name: Literal["dice"],
    *,
    percentile: float = 90.0,
    by_task: bool = False,
    setup: Literal["train+", "memory"] = "memory",
) -> DICE:
    """Energy of the head with the weights alone that contribute most in the mean over set-up images."""

@overload
def create_detector(
    name: Literal["energy"],
    *,
    temperature: float = 1.0,
    by_task: bool = False,
) -> Energy:
    """Negative free energy of the logits: T · logsumexp(z / T)."""

@overload
def create_detector(
    name: Literal["entropy"],
    *,
    by_task: bool = False,
) -> Entropy:
    """Negative entropy of the prediction: Σ p log p."""

@overload
def create_detector(
    name: Literal["fdbd"],
    *,
    divided_by: Literal["distance", "norm"] = "distance",
    by_task: bool = False,
    setup: Literal["train+", "memory"] = "memory",
) -> FDBD:
    """Mean distance to the decision boundaries of other classes, over the distance to the mean feature."""

@overload
def create_detector(
    name: Literal["gen"],
    *,
    gamma: float = 0.1,
    largest: int = 100,
    by_task: bool = False,
) -> GEN:
    """Negative generalised entropy of the M largest probabilities: −Σ p^γ (1 − p)^γ."""

@overload
def create_detector(
    name: Literal["gradnorm"],
    *,
    temperature: float = 1.0,
    by_task: bool = False,
) -> GradNorm:
    """Size of the head's gradient towards an even prediction: Σ|φ| · Σ|C softmax(z / T) − 1| / T."""

@overload
def create_detector(
    name: Literal["gram"],
    *,
    powers: int = 5,
    held_out: float = 0.1,
    seed: int = 0,
    by_task: bool = False,
    setup: Literal["train+", "memory"] = "memory",
) -> Gram:
    """How little the correlations of maps leave the range that the predicted class has, stage by stage."""

@overload
def create_detector(
    name: Literal["klm"],
    *,
    by_task: bool = False,
    setup: Literal["train+", "memory"] = "memory",
) -> KLM:
    """Nearness to a class's mean prediction: −min KL(p ‖ q_c), q_c from set-up images predicted as c."""

@overload
def create_detector(
    name: Literal["knn"],
    *,
    neighbours: int = 10,
    by_task: bool = False,
    setup: Literal["train+", "memory"] = "memory",
) -> KNN:
    """Negative squared distance to the K-th nearest of the set-up features, all of length 1."""

@overload
def create_detector(
    name: Literal["logitgap"],
    *,
    share: float = 0.2,
    most: int = 88,
    by_task: bool = False,
) -> LogitGap:
    """Largest logit minus the mean of the N next ones."""

@overload
def create_detector(
    name: Literal["logitnorm"],
    *,
    schedule: Mapping[str, Any] = ...,
    batch_size: int = 128,
    init: Literal["copy", "fresh"] = "copy",
    temperature: float = 1.0,
    tau: float = 0.04,
    by_task: bool = False,
    scored_by: str | Mapping[str, Any] | None = None,
    head_of: str | None = None,
) -> LogitNorm:
    """A head trained by CE on logits of norm 1 / τ, so that it cannot grow confident by length alone."""

@overload
def create_detector(
    name: Literal["lts"],
    *,
    share: float = 0.05,
    by_task: bool = False,
) -> LTS:
    """Energy of logits that are scaled by (Σφ⁺ / sum of its largest)²."""

@overload
def create_detector(
    name: Literal["mahalanobis"],
    *,
    by_task: bool = False,
    setup: Literal["train+", "memory"] = "memory",
) -> Mahalanobis:
    """Negative squared distance to the nearest class mean, by one covariance of all classes."""

@overload
def create_detector(
    name: Literal["maxlogit"],
    *,
    by_task: bool = False,
) -> MaxLogit:
    """Largest logit: max z."""

@overload
def create_detector(
    name: Literal["more"],
    *,
    schedule: Mapping[str, Any] = ...,
    batch_size: int = 128,
    init: Literal["copy", "fresh"] = "copy",
    temperature: float = 1.0,
    scored: Literal["task", "class"] = "task",
    by_task: bool = False,
    scored_by: str | Mapping[str, Any] | None = None,
    head_of: str | None = None,
) -> MORE:
    """Each task's classes and an output "other", trained on images of other tasks: the task least other."""

@overload
def create_detector(
    name: Literal["msp"],
    *,
    by_task: bool = False,
) -> MSP:
    """Largest softmax probability: max softmax(z)."""

@overload
def create_detector(
    name: Literal["nci"],
    *,
    alpha: float = 0.0001,
    by_task: bool = False,
    setup: Literal["train+", "memory"] = "memory",
) -> NCI:
    """How far the weights of the predicted class reach along the centred feature, and a bit of its length."""

@overload
def create_detector(
    name: Literal["neco"],
    *,
    variance: float = 0.9,
    max_logit: bool = False,
    by_task: bool = False,
    setup: Literal["train+", "memory"] = "memory",
) -> NECO:
    """Share of a standardised feature's length that lies along the first principal axes."""

@overload
def create_detector(
    name: Literal["nnguide"],
    *,
    neighbours: int = 100,
    share: float = 0.01,
    smallest_bank: int = 128,
    seed: int = 0,
    by_task: bool = False,
    setup: Literal["train+", "memory"] = "memory",
) -> NNGuide:
    """Energy times the mean similarity to the K nearest of a bank of set-up features, scaled by energy."""

@overload
def create_detector(
    name: Literal["npos"],
    *,
    schedule: Mapping[str, Any] = ...,
    batch_size: int = 128,
    init: Literal["copy", "fresh"] = "copy",
    temperature: float = 1.0,
    alpha: float = 0.1,
    margins: Literal["fixed", "model"] = "fixed",
    margin_in: float = -27.0,
    margin_out: float = -5.0,
    queue: int = 1000,
    outliers_by: Literal["head", "linear"] = "head",
    neighbours: int = 400,
    boundary: int = 200,
    chosen: int = 2,
    perturbations: int = 1000,
    kept: int = 300,
    sigma: float = 0.1,
    distances: Literal["directions", "features"] = "directions",
    by_task: bool = False,
    scored_by: str | Mapping[str, Any] | None = None,
    head_of: str | None = None,
) -> NPOS:
    """Points at a class's boundary are perturbed, and what lands farthest from the class is an outlier."""

@overload
def create_detector(
    name: Literal["odin"],
    *,
    temperature: float = 1000.0,
    epsilon: float = 0.0014,
    batch_size: int = 256,
    by_task: bool = False,
) -> ODIN:
    """Largest softmax(z / T) after a step of ε that raises it: x − ε · sign(∇ CE) / std."""

@overload
def create_detector(
    name: Literal["oe"],
    *,
    schedule: Mapping[str, Any] = ...,
    batch_size: int = 128,
    init: Literal["copy", "fresh"] = "copy",
    temperature: float = 1.0,
    weight: float = 0.5,
    concentration: float = 1.0,
    by_task: bool = False,
    scored_by: str | Mapping[str, Any] | None = None,
    head_of: str | None = None,
) -> OE:
    """A head trained by CE, and to be undecided about mixtures of new images: what BER adds to that shows."""

@overload
def create_detector(
    name: Literal["openmax"],
    *,
    tail: int = 20,
    alpha: int = 3,
    by_task: bool = False,
    setup: Literal["train+", "memory"] = "memory",
) -> OpenMax:
    """Odds of the known against an unknown class, which takes from the largest logits what is far away."""

@overload
def create_detector(
    name: Literal["pnml"],
    *,
    by_task: bool = False,
    setup: Literal["train+", "memory"] = "memory",
) -> PNML:
    """Negative regret of the head: how much it would gain by one more image, whatever its label."""

@overload
def create_detector(
    name: Literal["rankfeat"],
    *,
    temperature: float = 1.0,
    maps: Literal["both", "last"] = "both",
    by_task: bool = False,
) -> RankFeat:
    """Energy when the first singular component is taken out of the last maps, and of those before them."""

@overload
def create_detector(
    name: Literal["react"],
    *,
    percentile: float = 90.0,
    by_task: bool = False,
    setup: Literal["train+", "memory"] = "memory",
) -> ReAct:
    """Energy of features cut off at a percentile q of the set-up features: logsumexp(h(min(φ, q)))."""

@overload
def create_detector(
    name: Literal["regmix"],
    *,
    schedule: Mapping[str, Any] = ...,
    batch_size: int = 128,
    init: Literal["copy", "fresh"] = "copy",
    temperature: float = 1.0,
    share: float = 0.5,
    concentration: float = 10.0,
    by_task: bool = False,
    scored_by: str | Mapping[str, Any] | None = None,
    head_of: str | None = None,
) -> RegMix:
    """A head trained by CE on images and, half of it, on mixtures of two of them."""

@overload
def create_detector(
    name: Literal["relation"],
    *,
    power: float = 1.0,
    threshold: float = 0.03,
    by_task: bool = False,
    setup: Literal["train+", "memory"] = "memory",
) -> Relation:
    """Relations to the set-up images, those above a threshold: Σ r, r = max(0, cos(φ, φ_j)) · ⟨p, p_j⟩."""

@overload
def create_detector(
    name: Literal["relative-mahalanobis"],
    *,
    by_task: bool = False,
    setup: Literal["train+", "memory"] = "memory",
) -> RelativeMahalanobis:
    """Distance to a Gaussian of all features minus that to the nearest class: what classes explain."""

@overload
def create_detector(
    name: Literal["residual"],
    *,
    dimensions: int = 0,
    by_task: bool = False,
    setup: Literal["train+", "memory"] = "memory",
) -> Residual:
    """Negative length of what lies outside the principal space of the set-up features: −‖R^T(φ − u)‖."""

@overload
def create_detector(
    name: Literal["scale"],
    *,
    percentile: float = 85.0,
    by_task: bool = False,
) -> SCALE:
    """Energy of features scaled up where the largest make little of their sum: h(φ · exp(Σφ / Σ largest))."""

@overload
def create_detector(
    name: Literal["she"],
    *,
    by_task: bool = False,
    setup: Literal["train+", "memory"] = "memory",
) -> SHE:
    """Inner product with the predicted class's pattern, the mean feature of its rightly predicted images."""

@overload
def create_detector(
    name: Literal["t2fnorm"],
    *,
    schedule: Mapping[str, Any] = ...,
    batch_size: int = 128,
    init: Literal["copy", "fresh"] = "copy",
    temperature: float = 1.0,
    tau: float = 0.1,
    scored: Literal["raw", "scaled"] = "raw",
    by_task: bool = False,
    scored_by: str | Mapping[str, Any] | None = None,
    head_of: str | None = None,
) -> T2FNorm:
    """A head trained on features of norm 1 / τ, and scored on features that keep their norm."""

@overload
def create_detector(
    name: Literal["tempscale"],
    *,
    by_task: bool = False,
    setup: Literal["train+", "memory"] = "memory",
) -> TempScale:
    """Log-odds of the largest softmax(z / T), at the temperature under which set-up labels are likeliest."""

@overload
def create_detector(
    name: Literal["tpl"],
    *,
    neighbours: int = 5,
    by_task: bool = False,
    setup: Literal["train+", "memory"] = "memory",
) -> TPL:
    """Best task by nearness to its classes, distance from other tasks' memory, and its largest logit."""

@overload
def create_detector(
    name: Literal["vim"],
    *,
    dimensions: int = 0,
    by_task: bool = False,
    setup: Literal["train+", "memory"] = "memory",
) -> ViM:
    """Energy less a virtual logit, the residual in the scale of logits: logsumexp(z) − α‖R^T(φ − u)‖."""

@overload
def create_detector(
    name: Literal["vos"],
    *,
    schedule: Mapping[str, Any] = ...,
    batch_size: int = 128,
    init: Literal["copy", "fresh"] = "copy",
    temperature: float = 1.0,
    alpha: float = 0.1,
    margins: Literal["fixed", "model"] = "fixed",
    margin_in: float = -27.0,
    margin_out: float = -5.0,
    queue: int = 1000,
    outliers_by: Literal["head", "linear"] = "head",
    samples: int = 10000,
    ridge: float = 0.0001,
    by_task: bool = False,
    scored_by: str | Mapping[str, Any] | None = None,
    head_of: str | None = None,
) -> VOS:
    """The least likely of many samples of each class's Gaussian is an outlier; energies are kept apart."""

@overload
def create_detector(
    name: Literal["vra"],
    *,
    low: float = 60.0,
    high: float = 95.0,
    below: Literal["zero", "low"] = "zero",
    thresholds: Literal["each", "all"] = "each",
    by_task: bool = False,
    setup: Literal["train+", "memory"] = "memory",
) -> VRA:
    """Energy of features that are cut off above a percentile of the set-up features, and 0 below another."""

@overload
def create_detector(name: str, **values: Any) -> Detector:
    """The detector of that name, a plugin's or a labelled one too."""

@overload
def create_learner(
    name: Literal["acil"],
    *,
    first: Mapping[str, Any] = ...,
    width: int = 2000,
    drawn: Literal["normal", "uniform"] = "uniform",
    ridge: float | None = 0.1,
    epochs: int | None = None,
    epochs_scale: float = 1.0,
) -> ACIL:
    """Ridge regression on random features, of a strength that stays."""

@overload
def create_learner(
    name: Literal["bic"],
    *,
    train: Mapping[str, Any] = ...,
    correct: Mapping[str, Any] = ...,
    held_out: float = 0.1,
    temperature: float = 2.0,
    epochs: int | None = None,
    epochs_scale: float = 1.0,
) -> BiC:
    """Distillation weighted by the share of old classes; then a scale and a shift for the newest logits."""

@overload
def create_learner(
    name: Literal["der"],
    *,
    first: Mapping[str, Any] = ...,
    later: Mapping[str, Any] = ...,
    epochs: int | None = None,
    epochs_scale: float = 1.0,
) -> DER:
    """A new backbone a step beside the older ones, which are frozen; then the head's new rows are scaled."""

@overload
def create_learner(
    name: Literal["er-ace"],
    *,
    first: Mapping[str, Any] = ...,
    later: Mapping[str, Any] = ...,
    epochs: int | None = None,
    epochs_scale: float = 1.0,
) -> ERACE:
    """New images compete among the new classes, a balanced memory among all: old ones are not pushed away."""

@overload
def create_learner(
    name: Literal["ewc"],
    *,
    first: Mapping[str, Any] = ...,
    later: Mapping[str, Any] = ...,
    weight: float = 1000.0,
    most: float = 0.0001,
    epochs: int | None = None,
    epochs_scale: float = 1.0,
) -> EWC:
    """Cross-entropy among the new classes; parameters that mattered before are held where they were."""

@overload
def create_learner(
    name: Literal["fecam"],
    *,
    first: Mapping[str, Any] = ...,
    power: float = 0.5,
    shrink_diagonal: float = 1.0,
    shrink_rest: float = 1.0,
    epochs: int | None = None,
    epochs_scale: float = 1.0,
) -> FeCAM:
    """Mahalanobis distances to class means, with a shrunk correlation matrix for each class."""

@overload
def create_learner(
    name: Literal["fetril"],
    *,
    first: Mapping[str, Any] = ...,
    later: Mapping[str, Any] = ...,
    epochs: int | None = None,
    epochs_scale: float = 1.0,
) -> FeTrIL:
    """A linear head trained on new features, and on those of similar new classes in place of old ones."""

@overload
def create_learner(
    name: Literal["finetune"],
    *,
    first: Mapping[str, Any] = ...,
    later: Mapping[str, Any] = ...,
    epochs: int | None = None,
    epochs_scale: float = 1.0,
) -> Finetune:
    """Cross-entropy on the new classes alone, no memory: the lowest bound."""

@overload
def create_learner(
    name: Literal["foster"],
    *,
    first: Mapping[str, Any] = ...,
    boost: Mapping[str, Any] = ...,
    compress: Mapping[str, Any] = ...,
    boost_beta: float = 0.96,
    compress_beta: float = 0.97,
    temperature: float = 2.0,
    evaluate: Literal["boosted", "compressed"] = "boosted",
    epochs: int | None = None,
    epochs_scale: float = 1.0,
) -> FOSTER:
    """A second backbone learns what the frozen first one misses; both are then compressed into one."""

@overload
def create_learner(
    name: Literal["icarl"],
    *,
    first: Mapping[str, Any] = ...,
    later: Mapping[str, Any] = ...,
    temperature: float = 2.0,
    epochs: int | None = None,
    epochs_scale: float = 1.0,
) -> ICaRL:
    """Cross-entropy on all seen classes plus distillation from the previous model, with a herded memory."""

@overload
def create_learner(
    name: Literal["joint"],
    *,
    first: Mapping[str, Any] = ...,
    later: Mapping[str, Any] = ...,
    epochs: int | None = None,
    epochs_scale: float = 1.0,
) -> Joint:
    """A new model at every step, trained on all data of all classes seen: the upper bound."""

@overload
def create_learner(
    name: Literal["lucir"],
    *,
    train: Mapping[str, Any] = ...,
    balance: Mapping[str, Any] = ...,
    tunes: Literal["head", "all"] = "head",
    proxies: int = 1,
    retain: float = 5.0,
    ranking: float = 1.0,
    margin: float = 0.5,
    nearest: int = 2,
    epochs: int | None = None,
    epochs_scale: float = 1.0,
) -> LUCIR:
    """Cosine head; features keep their direction, exemplars a margin to new classes; a balanced tuning."""

@overload
def create_learner(
    name: Literal["lwf"],
    *,
    first: Mapping[str, Any] = ...,
    later: Mapping[str, Any] = ...,
    temperature: float = 2.0,
    weight: float = 3.0,
    epochs: int | None = None,
    epochs_scale: float = 1.0,
) -> LwF:
    """Cross-entropy among the new classes, and distillation from the previous model: no memory."""

@overload
def create_learner(
    name: Literal["memo"],
    *,
    first: Mapping[str, Any] = ...,
    later: Mapping[str, Any] = ...,
    epochs: int | None = None,
    epochs_scale: float = 1.0,
) -> MEMO:
    """DER of the network's last stage alone; the stages before it are shared, and go on training."""

@overload
def create_learner(
    name: Literal["podnet"],
    *,
    train: Mapping[str, Any] = ...,
    balance: Mapping[str, Any] = ...,
    tunes: Literal["head", "all"] = "head",
    proxies: int = 10,
    flat: float = 1.0,
    spatial: float = 3.0,
    epochs: int | None = None,
    epochs_scale: float = 1.0,
) -> PODNet:
    """Cosine head of ten proxies a class; sums over the maps of all stages stay close to the teacher's."""

@overload
def create_learner(
    name: Literal["ranpac"],
    *,
    first: Mapping[str, Any] = ...,
    width: int = 2000,
    drawn: Literal["normal", "uniform"] = "normal",
    ridge: float | None = None,
    epochs: int | None = None,
    epochs_scale: float = 1.0,
) -> RanPAC:
    """Ridge regression on random features; its strength is chosen at every step, on held-out new images."""

@overload
def create_learner(
    name: Literal["replay"],
    *,
    first: Mapping[str, Any] = ...,
    later: Mapping[str, Any] = ...,
    epochs: int | None = None,
    epochs_scale: float = 1.0,
) -> Replay:
    """Cross-entropy on the new classes and the memory, nothing else: a lower bound."""

@overload
def create_learner(
    name: Literal["simplecil"],
    *,
    first: Mapping[str, Any] = ...,
    epochs: int | None = None,
    epochs_scale: float = 1.0,
) -> SimpleCIL:
    """A cosine head whose rows are class means; after step 1, or on a frozen backbone, nothing is trained."""

@overload
def create_learner(
    name: Literal["ss-il"],
    *,
    first: Mapping[str, Any] = ...,
    later: Mapping[str, Any] = ...,
    temperature: float = 2.0,
    memory_share: float = 0.2,
    epochs: int | None = None,
    epochs_scale: float = 1.0,
) -> SSIL:
    """New images compete among the new classes, memory among the old ones; distillation task by task."""

@overload
def create_learner(
    name: Literal["wa"],
    *,
    first: Mapping[str, Any] = ...,
    later: Mapping[str, Any] = ...,
    temperature: float = 2.0,
    epochs: int | None = None,
    epochs_scale: float = 1.0,
) -> WA:
    """Distillation weighted by the share of old classes; after a step the head's new rows are scaled down."""

@overload
def create_learner(name: str, **values: Any) -> Learner:
    """The CIL method of that name, a plugin's or a labelled one too."""
