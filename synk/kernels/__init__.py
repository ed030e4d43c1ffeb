"""Kernels on arrays and their geometry: what `synk.ops` computes with.

    window      the geometry of convolutions and pooling
    choose      picks the provider of kernels for an array module and a dtype
    im2col      convolutions by matrix products           plain_pool  pooling by slices

Knows nothing of symbolic graphs. Imports of synk only its C compiler, ``compile.kernels``, and ``errors``.
"""
