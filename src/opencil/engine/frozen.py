"""Features of networks with fixed weights, by the fastest runtime of a device."""

import hashlib
import logging
import warnings
from collections.abc import Iterator, Mapping
from contextlib import suppress
from functools import cached_property
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Literal

import torch
from torch import Tensor

from opencil.data.images import Images
from opencil.data.transforms import Transform
from opencil.engine.arithmetic import FULL, Arithmetic
from opencil.engine.device import resolve_device
from opencil.errors import BadInput, not_allowed
from opencil.files import Damaged, read_checked, write_checked
from opencil.nets.create import Named, checksum_weights, create_backbone

#: ``auto``: ONNX Runtime on a CPU, where the extra ``onnx`` is installed; elsewhere torch.
Runtime = Literal["auto", "onnx", "torch"]
#: Images in one pass on a CPU: activations of more do not fit into the cache.
_TOGETHER = 8
#: Values of a backbone that neither its architecture nor its weights depend on.
_NOT_OWN = ("weights", "sha256", "freeze", "recompute")
_TITLE = "opencil onnx 1 "


class FrozenNetwork:
    """A backbone in evaluation mode with fixed weights, as ``backbone`` in a config names it.

    ``features`` are float32 on the device. Those of ONNX Runtime and of torch differ by rounding alone. The
    network for ONNX Runtime is made once per size of images, in some seconds, and kept in the folder
    ``cache`` if one is given. A GPU computes in ``arithmetic``.
    """

    def __init__(
        self,
        named: Named,
        runtime: Runtime = "auto",
        device: str | torch.device = "cpu",
        arithmetic: Arithmetic = FULL,
        cache: Path | None = None,
    ) -> None:
        self.device = resolve_device(str(device))
        values: Mapping[str, Any] = {"name": named} if isinstance(named, str) else named
        self.backbone = create_backbone(**{**values, "freeze": True})
        self.width, self._arithmetic, self._cache = self.backbone.width, arithmetic, cache
        own = {key: values[key] for key in sorted(values) if key not in _NOT_OWN}
        #: Checksum of the architecture and the weights.
        self.digest = hashlib.sha256(f"{own} {checksum_weights(self.backbone)}".encode()).hexdigest()
        usable = self.device.type == "cpu" and all(map(find_spec, ("onnx", "onnxruntime", "onnxscript")))
        if runtime == "onnx" and not usable:
            why = "it computes on a CPU, and needs packages: pip install 'opencil[onnx]'"
            raise not_allowed("runtime", runtime, why)
        self.runtime: Runtime = "onnx" if usable and runtime != "torch" else "torch"
        self._sessions: dict[tuple[int, ...], Any] = {}
        if self.runtime == "torch":
            self.backbone.to(self.device, memory_format=torch.channels_last)  # type: ignore[call-overload]

    @cached_property
    def kind(self) -> str:
        """Return what decides the last bits of features: the runtime, the device and the precision."""
        return f"{self.runtime} {self.device.type} {self._arithmetic.on(self.device)}"

    @torch.inference_mode()
    def features(self, images: Tensor) -> Tensor:
        """Return features [N, width] of normalised images, float32 [N, 3, H, W]."""
        if images.ndim != 4 or images.dtype != torch.float32:
            raise BadInput(f"images are {images.dtype} {list(images.shape)}: float32 [N, 3, H, W] is needed")
        if not len(images):
            return torch.empty(0, self.width, device=self.device)
        together = _TOGETHER if self.device.type == "cpu" else len(images)
        parts = torch.split(images, together)
        return torch.cat([self._of_torch(p) if self.runtime == "torch" else self._of_onnx(p) for p in parts])

    def _of_torch(self, images: Tensor) -> Tensor:
        images = images.to(self.device).contiguous(memory_format=torch.channels_last)
        with self._arithmetic.active(), self._arithmetic.autocast(self.device):
            return self.backbone(images).float()

    def _of_onnx(self, images: Tensor) -> Tensor:
        shape = tuple(images.shape[1:])
        if shape not in self._sessions:
            self._sessions[shape] = self._open_session(images)
        (found,) = self._sessions[shape].run(None, {"images": images.contiguous().numpy()})
        return torch.from_numpy(found)

    def _open_session(self, images: Tensor) -> Any:
        import onnxruntime

        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = torch.get_num_threads()
        return onnxruntime.InferenceSession(self._convert(images), options, ["CPUExecutionProvider"])

    def _convert(self, images: Tensor) -> bytes:
        """Return the network in ONNX for images of one size, from the cache if it is there."""
        size, file = "x".join(map(str, images.shape[1:])), None
        if self._cache is not None:
            file = self._cache / f"{self.digest[:16]}-{size}.onnx"
            if file.is_file():
                try:
                    return read_checked(file, _TITLE)
                except Damaged:  # it is made again
                    pass
        example = torch.zeros(2, *images.shape[1:])
        batch = {0: torch.export.Dim("images")}
        log = logging.getLogger("torch.onnx")
        before = log.level
        log.setLevel(logging.ERROR)  # torchvision, which is not needed, is missing
        try:
            with torch.inference_mode(False), warnings.catch_warnings():
                warnings.simplefilter("ignore")
                program: Any = torch.onnx.export(
                    self.backbone,
                    (example,),
                    dynamo=True,
                    dynamic_shapes=(batch,),
                    input_names=["images"],
                    output_names=["features"],
                    verbose=False,
                )
        finally:
            log.setLevel(before)
        content: bytes = program.model_proto.SerializeToString()
        if file is not None:
            with suppress(OSError):  # where it cannot be kept, the next process makes it again
                write_checked(file, content, _TITLE)
        return content


def compute_features(
    network: FrozenNetwork, images: Images, transform: Transform, start: int = 0, size: int = 512
) -> Iterator[Tensor]:
    """Yield the features of an image set in its order, from image ``start`` on, float32 [≤ size, width].

    Batches begin at multiples of ``size`` where ``start`` does: an image's features are the same bits.
    """
    together = _TOGETHER if network.device.type == "cpu" else size
    for pixels in images.batches(torch.arange(start, len(images)), size):
        # Transformed in small parts as well, which stay in a CPU's cache.
        parts = torch.split(pixels.to(network.device), together)
        yield torch.cat([network.features(transform.test(part)) for part in parts])
