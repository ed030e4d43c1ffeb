"""A process that has imported synk already, and forks one for each script: an import takes a second.

    with Warm() as warm: warm.run(text, arguments, seconds) -> subprocess.CompletedProcess
                         warm.start(text) -> Running, which is told apart from a Popen by its name only

The fork runs the text at the top level of its ``__main__``, as ``python -c`` does, and ends as any
interpreter ends. Started as a script itself, this file is that process; what it is told comes by a socket.
"""

import contextlib
import gc
import json
import os
import selectors
import signal
import socket
import subprocess
import sys
import time
import warnings

MOST = 1 << 16  # bytes of a text and its arguments


class Warm:
    """A warm process, seen from the tests: the connection over which it is given scripts.

    Scripts run one after the other. `knows` says whether it lives, and in the environment of now.
    """

    def __enter__(self):
        self._socket, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._environment = environment()
        command = [sys.executable, __file__, str(theirs.fileno())]
        self._process = subprocess.Popen(command, pass_fds=[theirs.fileno()])
        theirs.close()
        return self

    def __exit__(self, *_):
        self._socket.close()
        self._process.wait()

    def knows(self):
        return self._process.poll() is None and environment() == self._environment

    def start(self, text, arguments=()):
        """Start a script, its output piped; it must end before the next one starts."""
        (out, their_out), (err, their_err) = os.pipe(), os.pipe()
        message = json.dumps([os.getcwd(), text, *arguments]).encode()
        socket.send_fds(self._socket, [message], [their_out, their_err])
        os.close(their_out)
        os.close(their_err)
        pid = int(self._socket.recv(MOST))
        return Running(self._socket, pid, os.fdopen(out), os.fdopen(err))

    def run(self, text, arguments, seconds):
        """Do what ``subprocess.run([sys.executable, "-c", text, *arguments])`` does, output captured."""
        deadline = time.monotonic() + seconds
        with self.start(text, arguments) as running:
            out, err = running.stdout.fileno(), running.stderr.fileno()
            said = {out: b"", err: b""}
            if not read_all(said, deadline):
                running.kill()
            try:
                running.wait(max(0.0, deadline - time.monotonic()))
            except subprocess.TimeoutExpired:
                running.kill()
        if time.monotonic() > deadline:
            raise subprocess.TimeoutExpired(["-c", *arguments], seconds, said[out], said[err])
        said = [text.decode() for text in said.values()]
        return subprocess.CompletedProcess(["-c", *arguments], running.returncode, *said)


class Running:
    """A script that runs, with what tests use of `subprocess.Popen`; the end of ``with`` waits for it."""

    def __init__(self, channel, pid, stdout, stderr):
        self._channel = channel
        self.pid, self.stdout, self.stderr, self.returncode = pid, stdout, stderr, None

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.stdout.close()
        self.stderr.close()
        self.wait()

    def send_signal(self, number):
        if self.returncode is None:
            with contextlib.suppress(ProcessLookupError):  # it has ended, which nobody has asked for yet
                os.kill(self.pid, number)

    def kill(self):
        self.send_signal(signal.SIGKILL)

    def wait(self, timeout=None):
        """Return the exit code; raise `subprocess.TimeoutExpired` if the script runs longer than that."""
        if self.returncode is None:
            self._channel.settimeout(timeout)
            try:
                self.returncode = int(self._channel.recv(MOST))
            except (TimeoutError, BlockingIOError):
                raise subprocess.TimeoutExpired(["-c"], timeout) from None
            finally:
                self._channel.settimeout(None)
        return self.returncode

    def communicate(self):
        """Return the rest of the output; it must be short, because the pipes are read one after the other."""
        said = self.stdout.read(), self.stderr.read()
        self.wait()
        return said


def environment():
    """Return the variables, without the one in which pytest tells which test it is at."""
    return {name: value for name, value in os.environ.items() if name != "PYTEST_CURRENT_TEST"}


def read_all(said, deadline):
    """Read the descriptors of ``said`` into it until all are closed; return False after the deadline."""
    with selectors.DefaultSelector() as selector:
        for descriptor in said:
            selector.register(descriptor, selectors.EVENT_READ)
        while selector.get_map():
            if (left := deadline - time.monotonic()) <= 0:
                return False
            for key, _ in selector.select(left):
                came = os.read(key.fd, MOST)
                said[key.fd] += came
                if not came:
                    selector.unregister(key.fd)
    return True


def serve(channel):
    """Fork for every text that comes; return in each child its text and arguments, and None in the end."""
    while True:
        message, descriptors, _, _ = socket.recv_fds(channel, MOST, 2)
        if not message:
            return None
        with warnings.catch_warnings():
            # Python >= 3.12 warns of forks beside the threads of NumPy's BLAS.
            warnings.simplefilter("ignore", DeprecationWarning)
            pid = os.fork()
        if pid == 0:
            channel.close()
            for standard, descriptor in enumerate(descriptors, 1):
                os.dup2(descriptor, standard)
                os.close(descriptor)
            folder, text, *arguments = json.loads(message)
            os.chdir(folder)
            return text, arguments
        for descriptor in descriptors:
            os.close(descriptor)
        # Who asked has gone: so will we, by the next message.
        with contextlib.suppress(BrokenPipeError):
            channel.send(str(pid).encode())
        _, status = os.waitpid(pid, 0)
        with contextlib.suppress(BrokenPipeError):
            channel.send(str(os.waitstatus_to_exitcode(status)).encode())


if __name__ == "__main__":
    import pytensor.tensor as pt

    from synk.compile import array_mode

    # The first compilation imports more, SciPy for one, and fills caches of PyTensor.
    pt.zeros(2).sum().eval(mode=array_mode())
    # What all this made is no garbage: a fork that looked through it would copy the pages it has of us.
    gc.collect()
    gc.freeze()
    if (given := serve(socket.socket(fileno=int(sys.argv[1])))) is not None:
        text, sys.argv[:] = given[0], ["-c", *given[1]]
        sys.path[0] = ""
        main = sys.modules["__main__"] = type(sys)("__main__")
        del given
        exec(compile(text, "<string>", "exec"), main.__dict__)
