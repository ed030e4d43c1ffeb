"""What the emulator of CUDA raises."""


class CompileError(Exception):
    """The text is no CUDA that the emulator knows."""


class LaunchError(Exception):
    """What CUDA, or the emulator in its place, refuses to run."""


class Race(LaunchError):
    """A result depends on the order of threads, or on memory that nobody wrote."""
