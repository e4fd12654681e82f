"""The peer of the interoperation tests: a virtual machine with the soft RDMA driver of the Linux kernel.

    vm = PeerVm(image_directory("build/interop"), tap="tap0", ip="10.200.0.2/24", mtu=4500)
    vm.boot()
    status, output = vm.run("ibv_devinfo")
    vm.stop()

The tap device must exist in the caller's network namespace, and the caller needs an address in the VM's network.
"""

import base64
import fcntl
import hashlib
import os
import shlex
import shutil
import socket
import subprocess
import tempfile
import threading
import time
import uuid

HERE = os.path.dirname(os.path.abspath(__file__))
BUILDER = os.path.join(HERE, "build_vm.sh")
SHELL_PORT = 2323
READY = b"PEER-READY"


def why_no_qemu():
    """Why QEMU cannot run here, or None."""
    if not shutil.which("qemu-system-x86_64"):
        return "no qemu-system-x86_64 (package qemu-system-x86)"
    done = subprocess.run(["qemu-system-x86_64", "--version"], capture_output=True, text=True)
    return None if done.returncode == 0 else f"qemu-system-x86_64 does not start: {done.stderr.strip()}"


def image_directory(cache):
    """Directory below `cache` with the kernel and the RAM disk; built on first use, once for every version of the builder."""
    with open(BUILDER, "rb") as f:
        version = hashlib.sha256(f.read()).hexdigest()[:12]
    final = os.path.join(cache, f"peer-vm-{version}")
    os.makedirs(cache, exist_ok=True)
    with open(final + ".lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not os.path.exists(os.path.join(final, "vmlinuz")):
            # The builder puts vmlinuz there last, so a directory that has it is complete.
            done = subprocess.run([BUILDER, final], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
            if done.returncode != 0:
                raise RuntimeError(f"building the peer VM failed:\n{done.stdout[-4000:]}")
    return final


class PeerVm:
    """One virtual machine. Its Ethernet device is eth0; rxe0 sits on it."""

    def __init__(self, image, tap, ip="10.200.0.2/24", ip6="fd00:200::2/64", mtu=1500, mac="52:54:00:00:00:02", cpus=1):
        self.image = image
        self.tap, self.ip, self.ip6, self.mtu, self.mac, self.cpus = tap, ip, ip6, mtu, mac, cpus
        self.address = ip.split("/")[0]
        self.process = None
        self._console = None

    # Emulated where the processor's own virtualisation is not to be had, or does not get far, as in some machines that are
    # virtual themselves: ten times as slow, and right all the same. With the seconds that each may take.
    ACCELERATORS = (("kvm", "max,arch-capabilities=off", 8), ("tcg,thread=multi", "max", 240))

    def boot(self):
        """Starts the machine and waits until its drivers are there. RuntimeError with the console when they are not."""
        problems = []
        for accelerator, cpu, timeout in self.ACCELERATORS:
            problem = self._try_boot(accelerator, cpu, timeout)
            if problem is None:
                return
            problems.append(f"with {accelerator}:\n{problem}")
        raise RuntimeError("the peer VM did not boot\n" + "\n".join(problems))

    def _try_boot(self, accelerator, cpu, timeout):
        """What went wrong, or None."""
        self._console = tempfile.TemporaryFile(mode="w+b")
        # no_timer_check: on a busy machine the kernel takes an emulated timer for a broken one.
        arguments = ["qemu-system-x86_64", "-accel", accelerator, "-cpu", cpu, "-smp", str(self.cpus), "-m", "1024",
                     "-nographic", "-no-reboot", "-nodefaults", "-serial", "stdio", "-kernel", f"{self.image}/vmlinuz",
                     "-initrd", f"{self.image}/initrd", "-append",
                     f"console=ttyS0 quiet no_timer_check panic=-1 vmip={self.ip} vmip6={self.ip6} vmmtu={self.mtu}",
                     "-netdev", f"tap,id=net,ifname={self.tap},script=no,downscript=no",
                     "-device", f"virtio-net-pci,netdev=net,mac={self.mac},host_mtu={self.mtu},csum=off,gso=off,"
                     "guest_csum=off,guest_tso4=off,guest_tso6=off,guest_ufo=off"]
        self.process = subprocess.Popen(arguments, stdin=subprocess.DEVNULL, stdout=self._console, stderr=self._console)
        end = time.monotonic() + timeout
        while READY not in self.console():
            if self.process.poll() is not None or time.monotonic() > end:
                text = self.console().decode(errors="replace")
                self.stop()
                return text[-4000:]
            time.sleep(0.1)
        return None

    def console(self):
        size = os.fstat(self._console.fileno()).st_size
        return os.pread(self._console.fileno(), size, 0)

    def start(self, command):
        """Starts a shell command in the machine; returns a Remote."""
        return Remote(self, command)

    def run(self, command, timeout=120):
        """Runs a shell command in the machine. Returns (exit status, output and errors together)."""
        return self.start(command).wait(timeout)

    def put(self, path, name):
        """Copies an executable file into the machine's /tmp."""
        with open(path, "rb") as f:
            text = base64.encodebytes(f.read()).decode()
        remote = socket.create_connection((self.address, SHELL_PORT), timeout=60)
        with remote:
            remote.sendall(f"base64 -d >/tmp/{name} <<'END'\n{text}END\nchmod +x /tmp/{name} && echo complete; exit\n".encode())
            answer = b""
            while chunk := remote.recv(4096):
                answer += chunk
        if b"complete" not in answer:
            raise RuntimeError(f"copying {path} into the VM failed: {answer!r}")

    def stop(self):
        if self.process and self.process.poll() is None:
            self.process.kill()
            self.process.wait()
        if self._console:
            self._console.close()
            self._console = None


class Remote:
    """A command that runs in the machine."""

    def __init__(self, vm, command):
        self.command = command
        self._marker = f"status-{uuid.uuid4().hex}"
        self._output = bytearray()
        self._vm = vm
        self._socket = self._connect(vm.address)
        # In a shell of its own, with its process group's leader written down, so that kill() finds all of it.
        script = f"setsid sh -c {shlex.quote(command)} </dev/null 2>&1 & echo $! >/tmp/{self._marker}; wait $!; " \
                 f"status=$?; echo; echo {self._marker} $status; exit\n"
        self._socket.sendall(script.encode())
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    @staticmethod
    def _connect(address):
        end = time.monotonic() + 30
        while True:
            try:
                return socket.create_connection((address, SHELL_PORT), timeout=10)
            except OSError:
                if time.monotonic() > end:
                    raise
                time.sleep(0.2)

    def _read(self):
        self._socket.settimeout(None)
        while True:
            try:
                data = self._socket.recv(65536)
            except OSError:
                return
            if not data:
                return
            self._output += data

    def output(self):
        return bytes(self._output).decode(errors="replace").split(f"\n{self._marker}")[0]

    def running(self):
        return self._reader.is_alive()

    def wait(self, timeout=120):
        """(exit status, output); status 124 when the command had to be killed."""
        self._reader.join(timeout)
        if self._reader.is_alive():
            self.kill()
            return 124, self.output()
        self._socket.close()
        text = bytes(self._output).decode(errors="replace")
        _, found, status = text.rpartition(self._marker)
        return (int(status.split()[0]) if found else 255), self.output()

    def kill(self):
        if self._reader.is_alive():
            killer = Remote(self._vm, f"kill -9 -$(cat /tmp/{self._marker})")
            killer._reader.join(30)
            self._reader.join(30)
        self._socket.close()
