"""GPU kernels in Triton, which comes with CUDA builds of torch: imported only where a GPU is used."""
