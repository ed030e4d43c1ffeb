"""Write a CUDA kernel for elementwise Ops that were fused into one, and launch it.

`synk.compile.programs.elementwise.fusion` decides which Ops are fused.
"""
