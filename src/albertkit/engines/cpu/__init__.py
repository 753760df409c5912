"""The fused engine of processors with AVX-512: for a specialist. Compiled loops over tiles in registers."""
