"""Kind `inductor`: a package on CPUs, artifacts under CUDA graphs on GPUs."""
