"""Write elementwise Ops that were joined as one CUDA kernel, and launch it.

Which of them are joined is decided in `synk.compile.programs.elementwise.fusion`.
"""
