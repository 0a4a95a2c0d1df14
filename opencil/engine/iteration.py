"""One training iteration: eager on the CPU, a captured CUDA graph on a GPU.

ResNet-32 at batch 128 is far too small for a modern GPU: launching its kernels one by one takes longer than
running them. A graph launches all of them at once; see benchmarks/README.md for what that gives.
"""

from collections.abc import Callable

import torch
from torch import Tensor, nn

from opencil.engine.arithmetic import Arithmetic
from opencil.engine.device import free_unused
from opencil.engine.optimiser import State, create, kept
from opencil.engine.schedule import Schedule
from opencil.errors import BadInput
from opencil.nets.model import fused_backbones

#: Iterations that run eagerly before a capture: they make cuDNN choose and the optimiser create its buffers.
WARM_UP = 3


class Iteration:
    """Compute the loss of a batch, step the optimiser; a call gives the loss, left on the device.

    ``loss`` is a scalar of the tensors that a call is given, which have the same shapes in every call. What
    it draws from ``generator``, on the device, is drawn anew in every call.
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
    ) -> None:
        self._loss, self._arithmetic, self._generator, self._device = loss, arithmetic, generator, device
        self._on_gpu = device.type == "cuda"
        self._captures = capture and self._on_gpu
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
            fuse = self._arithmetic.compile and self._on_gpu
            with self._arithmetic.autocast(self._device), fused_backbones(fuse):
                loss = self._loss(*inputs)
            if not isinstance(loss, Tensor) or loss.numel() != 1 or not loss.requires_grad:
                raise BadInput(
                    f"a loss gives {_what(loss)}: one number in a tensor is needed, which follows from what "
                    "is trained"
                )
            self._optimiser.zero_grad(set_to_none=True)
            loss.backward()  # type: ignore[no-untyped-call]
        self._optimiser.step()
        return loss.detach()

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
