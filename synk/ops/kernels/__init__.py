"""Kernels on arrays and their geometry: what `synk.ops` computes with. Knows nothing of symbolic graphs.

window      the geometry of convolutions and pooling
choose      picks the provider of kernels for an array module and a dtype, of these:
onednn      convolutions by oneDNN, where the extra is installed
loops       all that is bound by memory, in C, where there is a compiler
im2col      convolutions by matrix products, of arrays of any module; `columns` makes the matrices
plain_pool  pooling by slices
plain_norm  normalisation and cross-entropy in array operations
provider    what all providers have, and memory for results

Providers for GPUs are in `synk.gpu.kernels`: convolutions by cuDNN, the rest in CUDA.
"""
