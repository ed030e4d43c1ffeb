"""Emulate hosts by name spaces, each with its own network, processes and shared memory.

    Hosts(3, folder) -> h1, h2, h3, joined by a bridge, an sshd on each -> run, link, kill ... close

Nothing of them has a name outside, so copies do not meet, and all end with the process that made them. Files
are those of this machine but for /dev/shm, /run and /etc/hosts.
"""

import contextlib
import ctypes
import os
import shutil
import signal
import subprocess
from pathlib import Path

from support.processes.waiting import wait_until

NETWORK = "10.77.0"
INTERFACE = f"{NETWORK}.0/24"  # for `synk.fork`
START_SECONDS = 20.0
WORDS = 200  # characters of a command
PR_SET_PDEATHSIG = 1

SSHD = """
HostKey {folder}/hostkey
AuthorizedKeysFile {folder}/id.pub
PidFile none
UsePAM no
StrictModes no
PermitRootLogin prohibit-password
PasswordAuthentication no
UseDNS no
MaxStartups 100
SetEnv TMPDIR=/run/tmp
"""

SSH = """
Host *
  User root
  IdentityFile {folder}/id
  IdentitiesOnly yes
  UserKnownHostsFile {folder}/known_hosts
  StrictHostKeyChecking yes
  LogLevel ERROR
"""

# The first process of a host becomes its sshd: where that ends, so do all others, and the mounts. Shells read
# nothing of this machine's at a login: it may take longer than the login.
FIRST = """
set -e
hostname {name}
mount -t tmpfs -o size={shm} shm /dev/shm
mount -t tmpfs tmp /run
mkdir -p /run/sshd /run/tmp
mount --bind {folder}/hosts /etc/hosts
[ ! -e ~/.bashrc ] || mount --bind /dev/null ~/.bashrc
export TMPDIR=/run/tmp
exec {sshd} -D -e -f {folder}/sshd_config
"""


def missing():
    """Return the reason why no hosts can be made here, or ""."""
    if os.geteuid() != 0:
        return "network name spaces are root's to make"
    for tool in ("unshare", "nsenter", "ip", "ssh", "ssh-keygen", "sshd"):
        if find(tool) is None:
            return f"there is no {tool}: apt-get install openssh-server iproute2 util-linux"
    probe = "mount -t tmpfs probe /run && ip link add probe type bridge"
    command = ["unshare", "-n", "-m", "-u", "-i", "-p", "-f", "sh", "-c", probe]
    said = subprocess.run(command, capture_output=True, text=True)
    return f"no name spaces can be made: {said.stderr.strip()}" if said.returncode else ""


def find(tool):
    """Return the path of a tool, also of those that only root has on its path."""
    return shutil.which(tool, path=f"{os.environ.get('PATH', '')}:/usr/sbin:/sbin")


class Hosts:
    """So many hosts; the first is the one that scripts are started on.

    Attributes
    ----------
    names : list of str
    folder : Path
        Of keys and settings.
    """

    def __init__(self, n, folder, shm="1g"):
        self.folder, self.names = Path(folder), [f"h{number}" for number in range(1, n + 1)]
        self._shm = shm
        self._write_settings()
        self._bridge = self._unshare(["-n"], "exec sleep infinity", self.folder / "bridge.log")
        self._hosts = {}
        try:
            self._await(lambda: self._is_apart(self._bridge))
            self._in_bridge("ip link add br0 type bridge && ip link set br0 up")
            for name in self.names:
                self.start(name)
        except BaseException:
            self.close()
            raise

    def _write_settings(self):
        for key in ("id", "hostkey"):
            file = self.folder / key
            subprocess.run([find("ssh-keygen"), "-q", "-t", "ed25519", "-N", "", "-f", file], check=True)
        public = " ".join((self.folder / "hostkey.pub").read_text().split()[:2])
        known = [f"{name},{self.address(name)} {public}\n" for name in self.names]
        addresses = [f"{self.address(name)} {name}\n" for name in self.names]
        own = Path("/etc/hosts").read_text() if Path("/etc/hosts").exists() else "127.0.0.1 localhost\n"
        (self.folder / "known_hosts").write_text("".join(known))
        (self.folder / "hosts").write_text(own + "".join(addresses))
        (self.folder / "sshd_config").write_text(SSHD.format(folder=self.folder))
        (self.folder / "ssh_config").write_text(SSH.format(folder=self.folder))

    def address(self, name):
        return f"{NETWORK}.{self.names.index(name) + 1}"

    def start(self, name):
        """Start a host, or start it again after its end."""
        number = self.names.index(name) + 1
        text = FIRST.format(name=name, shm=self._shm, folder=self.folder, sshd=find("sshd"))
        flags = ["-n", "-m", "-u", "-i", "-p", "-f", "--kill-child", "--mount-proc"]
        host = self._hosts[name] = self._unshare(flags, text, self.folder / f"{name}.log")
        self._await(lambda: self._is_apart(host) and self.first_process(name))
        port = self._port(name)
        self._in_bridge(
            f"ip link add {port} type veth "
            f"peer name eth0 address 02:00:00:00:00:{number:02x} netns {host.pid} && "
            f"ip link set {port} master br0 up"
        )
        own = f"ip addr add {self.address(name)}/24 dev eth0 && ip link set eth0 up && ip link set lo up"
        self._ip(host.pid, own)
        self._await(
            lambda: self._ip(host.pid, f"exec 2>/dev/null 3<>/dev/tcp/{self.address(name)}/22", False)
        )

    def _port(self, name):
        """Return the name of a host's port at the bridge."""
        return f"p{self.names.index(name) + 1}-{self._hosts[name].pid}"[:15]

    def _unshare(self, flags, script, log):
        tell = ctypes.CDLL(None).prctl
        with log.open("w") as file:
            return subprocess.Popen(
                [find("unshare"), *flags, "bash", "-c", script],
                stdin=subprocess.DEVNULL,
                stdout=file,
                stderr=file,
                start_new_session=True,
                preexec_fn=lambda: tell(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0),
            )

    def _await(self, ready):
        wait_until(ready, START_SECONDS, f"hosts do not start: see {self.folder}")

    def _is_apart(self, process):
        with contextlib.suppress(OSError):
            return os.readlink(f"/proc/{process.pid}/ns/net") != os.readlink("/proc/self/ns/net")
        return False

    def _in_bridge(self, script):
        self._ip(self._bridge.pid, script)

    def _ip(self, pid, script, check=True):
        command = [find("nsenter"), "-t", str(pid), "-n", "bash", "-c", script]
        return subprocess.run(command, check=check).returncode == 0

    # --- what goes on there --------------------------------------------------------------------------

    def first_process(self, name):
        """Return the pid, as seen from outside, of a host's first process; None where the host has ended."""
        host = self._hosts[name]
        try:
            children = Path(f"/proc/{host.pid}/task/{host.pid}/children").read_text().split()
        except OSError:
            return None
        return int(children[0]) if children else None

    def command(self, name, words):
        """Return the words of a command that runs others on a host."""
        spaces = ("-m", "-u", "-i", "-p", "-n")
        return [find("nsenter"), "-t", str(self.first_process(name)), *spaces, "--", *map(str, words)]

    def environment(self, **variables):
        """Return the environment of scripts that fork over the hosts."""
        told = {
            "TMPDIR": "/run/tmp",
            "SYNK_SSH_OPTIONS": f"-F {self.folder}/ssh_config",
            "OMP_NUM_THREADS": "1",
        }
        return {**os.environ, **told, **variables}

    def run(self, name, words, seconds=120, **variables):
        """Run a command on a host; return its exit code and all that it said."""
        command = self.command(name, ["timeout", "-k", "2", str(seconds), *words])
        return subprocess.run(
            command,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            env=self.environment(**variables),
        )

    def link(self, name, state):
        """Pull the host's cable, or plug it in: "down" or "up"."""
        self._ip(self._hosts[name].pid, f"ip link set eth0 {state}")

    def cut(self, one, other):
        """Let nothing pass between two hosts, which others still reach."""
        for host, away in ((one, other), (other, one)):
            self._ip(self._hosts[host].pid, f"ip route add blackhole {self.address(away)}/32")

    def mend(self, one, other):
        """Restore the network that `cut` has cut."""
        for host, away in ((one, other), (other, one)):
            self._ip(self._hosts[host].pid, f"ip route del blackhole {self.address(away)}/32")

    def kill(self, name):
        """End a host by its first process."""
        os.kill(self.first_process(name), signal.SIGKILL)
        self._hosts[name].wait()
        # Its network lasts as long as anything from outside is in it, and would answer in place of the next.
        self._in_bridge(f"ip link delete {self._port(name)} 2>/dev/null || true")

    def processes(self, name):
        """Return the commands of a host's processes but its sshd's, by their pids as seen from outside."""
        first = self.first_process(name)
        own = os.readlink(f"/proc/{first}/ns/pid")
        found = {}
        for folder in Path("/proc").glob("[0-9]*"):
            with contextlib.suppress(OSError):
                words = (folder / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
                if os.readlink(folder / "ns" / "pid") == own and words and not words.startswith("sshd:"):
                    found[int(folder.name)] = words[:WORDS]
        found.pop(first, None)
        return found

    def files(self, name):
        """Return the files in a host's shared memory and temporary folder."""
        root = Path(f"/proc/{self.first_process(name)}/root")
        folders = ("/dev/shm", "/run/tmp")
        return [f"{folder}/{file}" for folder in folders for file in os.listdir(f"{root}{folder}")]

    def left(self, name):
        """Describe the processes and files on a host that were not there at its start."""
        return [*self.files(name), *self._listeners(name), *self.processes(name).values()]

    def _listeners(self, name):
        """Return the TCP ports on which others than the sshd listen."""
        for line in Path(f"/proc/{self.first_process(name)}/net/tcp").read_text().splitlines()[1:]:
            _, local, _, state, *_ = line.split()
            port = int(local.rpartition(":")[2], 16)
            if state == "0A" and port != 22:
                yield f"listener at port {port}"

    def close(self):
        """End all hosts."""
        for process in (*self._hosts.values(), self._bridge):
            process.kill()
            process.wait()
