"""One training iteration: eager on the CPU, a captured CUDA graph on a GPU.

Launching the kernels of a small network one by one takes longer than running them; a graph launches all.
"""

from collections.abc import Callable, Iterable

import torch
from torch import Tensor, nn

from opencil.engine.arithmetic import Arithmetic
from opencil.engine.batch_norm import synchronised
from opencil.engine.device import free_unused
from opencil.engine.ranks import Share, current
from opencil.engine.schedule import Schedule
from opencil.errors import BadInput
from opencil.nets.model import fused_backbones

#: State of an optimiser by parameter and key, such as ``00003.exp_avg``.
State = dict[str, Tensor]
#: Iterations that run eagerly before a capture, in which cuDNN chooses and the optimiser creates its buffers.
WARM_UP = 3


class Iteration:
    """Compute the loss of a batch and step the optimiser; a call returns the loss, on the device.

    ``loss`` is a scalar of the tensors of a call. Calls of another shape than the first are not captured. The
    loss's draws from ``generator``, on the device, differ from call to call. On several ranks the tensors are
    a ``share`` of the batch, but the loss and the gradients are those of the whole batch.
    """

    def __init__(
        self,
        module: nn.Module,
        loss: Callable[..., Tensor],
        schedule: Schedule,
        arithmetic: Arithmetic,
        device: torch.device,
        generator: torch.Generator | None = None,
        capture: bool = True,
        share: Share | None = None,
        rates: Iterable[tuple[nn.Module, float]] = (),
    ) -> None:
        self._loss, self._arithmetic, self._generator, self._device = loss, arithmetic, generator, device
        self._on_gpu = device.type == "cuda"
        self._share, self._ranks = share, current() if share is not None else None
        alone = self._ranks is None or self._ranks.capturable
        self._captures = capture and self._on_gpu and alone and schedule.capturable
        self._schedule = schedule
        self._norm_ranks = self._ranks if arithmetic.batch_norm == "synchronised" else None
        factors = {p: factor for part, factor in rates for p in part.parameters()}
        trained = [p for p in module.parameters() if p.requires_grad]
        # The optimiser numbers parameters group by group.
        self.parameters = sorted(trained, key=lambda p: factors.get(p, 1.0)) if factors else trained
        own = [factors.get(p, 1.0) for p in self.parameters]
        try:
            self._optimiser = schedule.create_optimiser(self.parameters, self._on_gpu, own)
        except ValueError as error:
            raise BadInput(f"optimiser {schedule.optimiser!r} cannot train this model: {error}") from None
        self._calls = 0
        self._shape: torch.Size | None = None
        self._graph: torch.cuda.CUDAGraph | None = None
        self._inputs: tuple[Tensor, ...] = ()
        self._output = torch.empty(0)

    def __call__(self, *inputs: Tensor) -> Tensor:
        """Take one step on a batch; the returned loss is valid until the next call."""
        self._calls += 1
        self._shape = inputs[0].shape if self._shape is None else self._shape
        if not self._captures or self._calls <= WARM_UP or inputs[0].shape != self._shape:
            return self.step(*inputs)
        if self._graph is None:
            self._capture(inputs)
        assert self._graph is not None
        torch._foreach_copy_(self._inputs, inputs)
        self._graph.replay()
        return self._output

    def step(self, *inputs: Tensor) -> Tensor:
        """Take one step on a batch, without capturing it."""
        with self._arithmetic.active():
            fuse = self._arithmetic.compile and self._on_gpu and self._norm_ranks is None
            autocast = self._arithmetic.autocast(self._device)
            with autocast, fused_backbones(fuse), synchronised(self._norm_ranks):
                loss = self._loss(*inputs)
            if not isinstance(loss, Tensor) or loss.numel() != 1 or not loss.requires_grad:
                raise BadInput(f"a loss returns {loss}: a tensor of one number is needed, with gradients")
            self._optimiser.zero_grad()
            if self._share is not None:
                # Its part of the batch's loss: the gradients of all parts add up to those of the batch.
                loss = loss * self._share.weight
            loss.backward()  # type: ignore[no-untyped-call]
            loss = loss.detach()
            if self._ranks is not None:
                # After the backward pass, for growing heads and stages that train other parameters. A
                # parameter without a gradient has none on any rank.
                self._ranks.sum_all_([loss, *(p.grad for p in self.parameters if p.grad is not None)])
        self._optimiser.step()
        return loss

    def set_lr(self, lr: float) -> None:
        """Set the learning rate of the next steps, captured ones too."""
        for group in self._optimiser.param_groups:
            if isinstance(group["lr"], Tensor):
                group["lr"].fill_(lr * group["factor"])
            else:
                group["lr"] = lr * group["factor"]

    def state(self) -> State:
        """Return the optimiser's state; a parameter without a gradient so far may have none."""
        return _state_of(self._optimiser)

    def fits(self, state: State) -> bool:
        """Return whether a state has the shapes of the optimiser's own after a step."""
        copies = [nn.Parameter(torch.zeros(p.shape, dtype=p.dtype)) for p in self.parameters]
        optimiser = self._schedule.create_optimiser(copies)
        for copy in copies:
            copy.grad = torch.zeros_like(copy)
        optimiser.step()
        present = {name.partition(".")[0] for name in state}
        own = {name: t.shape for name, t in _state_of(optimiser).items() if name.partition(".")[0] in present}
        return own == {name: tensor.shape for name, tensor in state.items()}

    def restore(self, state: State) -> None:
        """Load copies of another optimiser's state, in the memory layout of its parameters.

        Fused steps read parameters and state in the order of their memory; files have no layout.
        """
        by_parameter: dict[int, dict[str, Tensor]] = {}
        for name, tensor in state.items():
            number, _, key = name.partition(".")
            copy, own = tensor.clone(), self.parameters[int(number)]
            if copy.ndim and copy.shape == own.shape:
                copy = torch.empty_like(own, dtype=copy.dtype).copy_(copy)
            by_parameter.setdefault(int(number), {})[key] = copy
        groups = self._optimiser.state_dict()["param_groups"]
        self._optimiser.load_state_dict({"state": by_parameter, "param_groups": groups})

    def _capture(self, inputs: tuple[Tensor, ...]) -> None:
        self._inputs = tuple(tensor.clone() for tensor in inputs)
        self._optimiser.zero_grad()
        self._graph = torch.cuda.CUDAGraph()
        if self._generator is not None:
            self._graph.register_generator_state(self._generator)
        # Not by torch.cuda.graph, which waits for the whole device, other runs' work too, and empties the
        # cache: seven heads are captured in a step.
        free_unused(self._device)
        self._graph.capture_begin(capture_error_mode="thread_local")
        try:
            self._output = self.step(*self._inputs)
        finally:
            self._graph.capture_end()


def _state_of(optimiser: torch.optim.Optimizer) -> State:
    return {
        f"{number:05d}.{key}": torch.as_tensor(value)
        for number, values in optimiser.state_dict()["state"].items()
        for key, value in values.items()
        if value is not None
    }
