"""Running plans on NVIDIA GPUs. Everything of CUDA goes through one object, a `driver.Driver`."""
