"""Kernels that compute the Ops of `synk.ops` on arrays, and their geometry. No symbolic graph is seen here.

window      the geometry of convolutions and pooling; `resampling` that of changes of size
choose      picks the provider of kernels for an array module and a dtype, of these:
onednn      convolutions by oneDNN, where the extra is installed
loops       kernels whose time goes into reading memory, in C, where there is a compiler
im2col      convolutions by matrix products, for any array module; `columns` makes the matrices
plain_pool  pooling by slices; `plain_resampling`: changes of size
plain_norm  normalisation and cross-entropy in array operations
provider    the base class of providers, and memory for results
"""
