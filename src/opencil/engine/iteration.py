"""One training iteration: eager on the CPU, a captured CUDA graph on a GPU.

ResNet-32 at batch 128 is far too small for a modern GPU: launching its kernels one by one takes longer than
running them. A graph launches all of them at once; see benchmarks/README.md for what that gives.
"""

from collections.abc import Callable

import torch
from torch import Tensor, nn

from opencil.engine.arithmetic import Arithmetic
from opencil.engine.batch_norm import synchronised
from opencil.engine.device import free_unused
from opencil.engine.optimiser import State, create, kept
from opencil.engine.ranks import Share, at_work
from opencil.engine.schedule import Schedule
from opencil.errors import BadInput
from opencil.nets.model import fused_backbones

#: Iterations that run eagerly before a capture: they make cuDNN choose and the optimiser create its buffers.
WARM_UP = 3


class Iteration:
    """Compute the loss of a batch, step the optimiser; a call gives the loss, left on the device.

    ``loss`` is a scalar of the tensors that a call is given, which have the same shapes in every call. What
    it draws from ``generator``, on the device, is drawn anew in every call.

    On several ranks the tensors are a ``share`` of the batch: the loss, and the gradients that the optimiser
    steps by, are then those of the whole.
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
    ) -> None:
        self._loss, self._arithmetic, self._generator, self._device = loss, arithmetic, generator, device
        self._on_gpu = device.type == "cuda"
        self._ranks, self._share = at_work(), share
        self._captures = capture and self._on_gpu and (self._ranks is None or self._ranks.capturable)
        whole = share is not None and arithmetic.batch_norm == "synchronised"
        self._norm_over = self._ranks if whole else None
        # On a GPU the learning rate is a tensor: a captured step reads it anew at every replay.
        self._lr = torch.tensor(schedule.lr, device=device) if self._on_gpu else schedule.lr
        self.parameters = [p for p in module.parameters() if p.requires_grad]
        self._schedule = schedule
        self._optimiser = create(schedule, self.parameters, self._lr, self._on_gpu)
        self._calls = 0
        self._graph: torch.cuda.CUDAGraph | None = None
        self._inputs: tuple[Tensor, ...] = ()
        self._output = torch.empty(0)

    def set_lr(self, lr: float) -> None:
        """Use another learning rate from the next call on."""
        if isinstance(self._lr, Tensor):
            self._lr.fill_(lr)
        else:
            for group in self._optimiser.param_groups:
                group["lr"] = lr

    def __call__(self, *inputs: Tensor) -> Tensor:
        """One step on a batch; the loss is valid until the next call."""
        self._calls += 1
        if not self._captures or self._calls <= WARM_UP:
            return self._step(*inputs)
        if self._graph is None:
            self._capture(inputs)
        assert self._graph is not None
        torch._foreach_copy_(self._inputs, inputs)
        self._graph.replay()
        return self._output

    def state(self) -> State:
        """What the optimiser keeps; of a parameter that has had no step yet, what it begins with."""
        return {
            name: self._optimiser.state[parameter].get(key, blank)
            for name, parameter, key, blank in kept(self._schedule, self.parameters)
        }

    def restore(self, state: State) -> None:
        """Go on with what the optimiser of another iteration kept."""
        for name, parameter, key, blank in kept(self._schedule, self.parameters):
            self._optimiser.state[parameter][key] = blank.copy_(state[name])

    def _step(self, *inputs: Tensor) -> Tensor:
        with self._arithmetic.active():
            fuse = self._arithmetic.compile and self._on_gpu and self._norm_over is None
            autocast = self._arithmetic.autocast(self._device)
            with autocast, fused_backbones(fuse), synchronised(self._norm_over):
                loss = self._loss(*inputs)
            if not isinstance(loss, Tensor) or loss.numel() != 1 or not loss.requires_grad:
                raise BadInput(
                    f"a loss gives {_what(loss)}: one number in a tensor is needed, which follows from what "
                    "is trained"
                )
            self._optimiser.zero_grad(set_to_none=True)
            if self._share is not None:
                # Its part of the whole batch's loss: the gradients of all parts add up to that of the whole.
                loss = loss * self._share.weight
            loss.backward()  # type: ignore[no-untyped-call]
            if self._share is not None:
                loss = self._of_all_ranks(loss.detach())
        self._optimiser.step()
        return loss.detach()

    def _of_all_ranks(self, loss: Tensor) -> Tensor:
        """The loss of the whole batch, with the gradients of the whole in place of this rank's part.

        One sum, after the way back, whatever is trained: heads grow, stages train other parameters, and one
        without a gradient has none on any rank.
        """
        assert self._ranks is not None
        gradients = [p.grad for p in self.parameters if p.grad is not None]
        parts = [loss, *gradients]
        dtype = self.parameters[0].dtype
        summed = self._ranks.sum_(torch.cat([part.reshape(-1).to(dtype) for part in parts]))
        for part, of_all in zip(parts, torch.split(summed, [part.numel() for part in parts]), strict=True):
            part.copy_(of_all.view(part.shape))
        return loss

    def _capture(self, inputs: tuple[Tensor, ...]) -> None:
        self._inputs = tuple(given.clone() for given in inputs)
        self._optimiser.zero_grad(set_to_none=True)
        self._graph = torch.cuda.CUDAGraph()
        if self._generator is not None:
            self._graph.register_generator_state(self._generator)
        # Not by torch.cuda.graph, which first waits for the whole device, other runs' work too, and frees all
        # that is cached: seven heads are captured a step.
        free_unused(self._device)
        self._graph.capture_begin(capture_error_mode="thread_local")
        try:
            self._output = self._step(*self._inputs)
        finally:
            self._graph.capture_end()


def _what(loss: object) -> str:
    if not isinstance(loss, Tensor):
        return f"a {type(loss).__name__}"
    return f"a tensor {list(loss.shape)}" + ("" if loss.requires_grad else " without a gradient")
