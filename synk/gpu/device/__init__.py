"""CUDA's devices, found without initialising them, and copies to and from them."""
