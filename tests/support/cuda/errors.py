"""The errors of the emulator of CUDA."""


class CompileError(Exception):
    """The text is no CUDA that the emulator knows."""


class LaunchError(Exception):
    """CUDA, or the emulator in its place, refuses to run this."""


class Race(LaunchError):
    """A result depends on the order of threads, or on memory that nobody wrote."""
