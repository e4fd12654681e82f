"""What the program tests share: the build under test, a NIC process of their own, processes and ports.

Standard library only. Every test works in a private directory, on free ports, and waits for conditions
instead of for time.
"""

import ctypes
import fcntl
import json
import os
import re
import shlex
import shutil
import signal
import socket
import struct
import subprocess
import tempfile
import time
import unittest

TIMEOUT = float(os.environ.get("SOFTRNIC_TEST_TIMEOUT", "180"))  # seconds; generous: machines may be loaded
HERE = os.path.dirname(os.path.abspath(__file__))


class Build:
    """The build under test; filled in by apps.py."""

    bin = ""  # softrnic and softrnicd
    progs = ""  # our own verbs programs
    asan = False
    judges = ""  # independent checks of captures
    share = ""  # what is installed below share/
    labs = ""  # the examples of labs
    workdir = ""  # accessible to the user that the tests run as


def softrnic():
    return os.path.join(Build.bin, "softrnic")


def base_env():
    env = {k: v for k, v in os.environ.items() if not k.startswith("SOFTRNIC_") and k != "XDG_RUNTIME_DIR"}
    env["LC_ALL"] = "C"
    env["PATH"] = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
    env["HOME"] = Build.workdir
    env["TMPDIR"] = Build.workdir
    if Build.asan:
        libasan = subprocess.run(["gcc", "-print-file-name=libasan.so"], capture_output=True, text=True, check=True)
        env["LD_PRELOAD"] = os.path.realpath(libasan.stdout.strip())
        # Third-party programs leak at exit; verify_asan_link_order: they are not linked with the sanitizer.
        env["ASAN_OPTIONS"] = "detect_leaks=0:verify_asan_link_order=0:abort_on_error=1"
        env["UBSAN_OPTIONS"] = "halt_on_error=1:print_stacktrace=1"
    return env


def wait_for(condition, what, timeout=None, interval=0.02):
    """Polls until condition() is true; returns its value."""
    end = time.monotonic() + (timeout or TIMEOUT)
    while True:
        value = condition()
        if value:
            return value
        if time.monotonic() > end:
            raise AssertionError(f"gave up waiting for {what}")
        time.sleep(interval)


def free_port():
    """A TCP port nobody uses now, below the range that outgoing connections get theirs from."""
    for port in range(20000 + (os.getpid() * 7919 + time.monotonic_ns()) % 10000, 31000):
        with socket.socket() as s:
            try:
                s.bind(("", port))
                return port
            except OSError:
                continue
    raise AssertionError("no free port")


def listening(port):
    wanted = f":{port:04X} "
    for table in ("/proc/net/tcp", "/proc/net/tcp6"):
        try:
            with open(table) as f:
                for line in f:
                    fields = line.split()
                    if len(fields) > 3 and (fields[1] + " ").endswith(wanted) and fields[3] == "0A":
                        return True
        except FileNotFoundError:
            pass
    return False


def cpu_seconds(pid):
    """User and system time of a process so far."""
    with open(f"/proc/{pid}/stat") as f:
        fields = f.read().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


class Offloads:
    """Offloads of an interface of this network namespace, as ethtool has them."""

    SIOCETHTOOL = 0x8946
    GET = {"rx": 0x14, "tx": 0x16, "sg": 0x18, "tso": 0x1E, "gso": 0x23, "gro": 0x2B}

    @staticmethod
    def _call(interface, command, data):
        value = bytearray(struct.pack("II", command, data))
        address = ctypes.addressof((ctypes.c_char * len(value)).from_buffer(value))
        with socket.socket() as s:
            fcntl.ioctl(s, Offloads.SIOCETHTOOL, struct.pack("16sP", interface.encode(), address))
        return struct.unpack("II", value)[1]

    @staticmethod
    def on(interface):
        return [name for name, get in Offloads.GET.items() if Offloads._call(interface, get, 0)]

    @staticmethod
    def switch(interface, name, on):
        Offloads._call(interface, Offloads.GET[name] + 1, int(on))  # each has its number for setting behind that for asking


class Process:
    """A child whose output is collected in a file; killed at the end of the test if it still runs."""

    def __init__(self, argv, env, name=None, stdin=subprocess.DEVNULL):
        self.argv = argv
        self.name = name or os.path.basename(argv[0])
        self._out = tempfile.TemporaryFile(mode="w+b", dir=Build.workdir)
        self.child = subprocess.Popen(argv, env=env, stdin=stdin, stdout=self._out, stderr=subprocess.STDOUT)

    @property
    def pid(self):
        return self.child.pid

    def output(self):
        size = os.fstat(self._out.fileno()).st_size
        return os.pread(self._out.fileno(), size, 0).decode(errors="replace")

    def running(self):
        return self.child.poll() is None

    def signal(self, number):
        self.child.send_signal(number)

    def wait(self, timeout=None):
        """The exit status; a test failure with the output when the process does not end."""
        try:
            return self.child.wait(timeout or TIMEOUT)
        except subprocess.TimeoutExpired:
            self.kill()
            raise AssertionError(f"{shlex.join(self.argv)} did not end; output:\n{self.output()}") from None

    def kill(self):
        if self.running():
            self.child.kill()
        self.child.wait()

    def close(self):
        self.kill()
        self._out.close()
        if self.child.stdin:
            self.child.stdin.close()


class Nic:
    """A NIC process in a directory of its own."""

    alive = []

    def __init__(self, test, start=True):
        self.dir = tempfile.mkdtemp(prefix="nic-", dir=Build.workdir)
        self.test = test
        self.control_env = dict(base_env(), SOFTRNIC_DIR=self.dir)
        Nic.alive.append(self)
        test.addCleanup(self.close)
        if start:
            self.up()
        self.env = self._program_env()

    def _program_env(self):
        """What `softrnic env` says, on top of the harness's own environment."""
        done = subprocess.run([softrnic(), "env", "--plain"], env=self.control_env, capture_output=True, text=True,
                              check=True, timeout=TIMEOUT)
        return dict(self.control_env, **dict(line.split("=", 1) for line in done.stdout.splitlines()))

    def command(self, *args, check=True, timeout=None):
        """Runs the softrnic command against this NIC process."""
        done = subprocess.run([softrnic(), *args], env=self.control_env, capture_output=True, text=True,
                              stdin=subprocess.DEVNULL, timeout=timeout or TIMEOUT)
        if check and done.returncode != 0:
            raise AssertionError(f"softrnic {shlex.join(args)}: exit {done.returncode}\n{done.stdout}{done.stderr}")
        return done

    def up(self):
        self.command("up")

    def status(self):
        return json.loads(self.command("status", "--json").stdout)

    def daemon_pid(self):
        """The NIC process: the one that holds our control socket's directory."""
        for pid in filter(str.isdigit, os.listdir("/proc")):
            try:
                with open(f"/proc/{pid}/comm") as f:
                    if f.read().strip() != "softrnicd":
                        continue
                with open(f"/proc/{pid}/environ", "rb") as f:
                    environ = f.read()
                with open(f"/proc/{pid}/cmdline", "rb") as f:
                    cmdline = f.read()
            except (FileNotFoundError, PermissionError, ProcessLookupError):
                continue
            if self.dir.encode() in environ + cmdline:
                return int(pid)
        raise AssertionError(f"no softrnicd runs in {self.dir}")

    def start(self, argv, stdin=subprocess.DEVNULL, env=None):
        process = Process(argv, dict(self.env, **(env or {})), stdin=stdin)
        self.test.addCleanup(process.close)
        return process

    def close(self):
        if self not in Nic.alive:
            return
        subprocess.run([softrnic(), "down"], env=self.control_env, capture_output=True, timeout=TIMEOUT)
        try:
            os.kill(self.daemon_pid(), signal.SIGKILL)
        except (AssertionError, ProcessLookupError):
            pass
        shutil.rmtree(self.dir, ignore_errors=True)
        Nic.alive.remove(self)

    @staticmethod
    def close_all():
        """For a run that is interrupted."""
        for nic in list(Nic.alive):
            nic.close()


class AppTest(unittest.TestCase):
    """Base of all program tests: one NIC process for the tests of a class that do not disturb it."""

    maxDiff = None

    def setUp(self):
        self.nic = Nic(self)

    def run_program(self, *argv, env=None, expect=0, nic=None, timeout=None):
        """Runs one program to its end; returns its output."""
        p = (nic or self.nic).start(list(argv), env=env)
        status = p.wait(timeout)
        self.assertEqual(status, expect, f"{shlex.join(argv)}: exit {status}\n{p.output()}")
        return p.output()

    def prog(self, name):
        return os.path.join(Build.progs, name)

    def case(self, name, *args, **kw):
        """Runs one case of our own verbs program."""
        return self.run_program(self.prog("verbs_cases"), name, *args, **kw)

    def start_pair(self, argv, client_argv=None, nic=None):
        """Starts a server on a free port and, when it listens, its client."""
        nic = nic or self.nic
        for _ in range(5):
            port = free_port()
            server = nic.start([*argv, "-p", str(port)])
            wait_for(lambda: listening(port) or not server.running(), f"{argv[0]} to listen")
            if server.running():
                return server, nic.start([*(client_argv or argv), "-p", str(port), "127.0.0.1"])
            if "in use" not in server.output():
                self.fail(f"server {shlex.join(argv)}: exit {server.wait()}\n{server.output()}")
        self.fail(f"{argv[0]} found no free port")

    def finish_pair(self, pair):
        server, client = pair
        client_status = client.wait()
        if client_status != 0 and server.running():
            try:
                server.child.wait(5)
            except subprocess.TimeoutExpired:
                server.kill()
        server_status = server.wait()
        if client_status != 0 or server_status != 0:
            self.fail(f"{shlex.join(client.argv)}: exit {client_status}\n{client.output()}\n"
                      f"--- server: exit {server_status}\n{server.output()}")
        return server.output(), client.output()

    def pair(self, *argv, nic=None):
        """Runs server and client to their ends; both must succeed. Returns (server output, client output)."""
        return self.finish_pair(self.start_pair(list(argv), nic=nic))

    def gids(self):
        """[(index, text, type)] of the first device, as ibv_devinfo -v prints them."""
        out = self.run_program("ibv_devinfo", "-v")
        return [(int(i), gid, kind) for i, gid, kind in
                re.findall(r"GID\[\s*(\d+)\]:\s*(\S+?),?\s+(RoCE v\d|IB/RoCE v1)", out)]


class CaptureTest(AppTest):
    """Base of tests that look at packets."""

    def file(self, name="capture.pcapng"):
        return os.path.join(self.nic.dir, name)

    def start_capture(self, path, *options):
        p = self.nic.start([softrnic(), "capture", "-w", path, *options])
        wait_for(lambda: (os.path.exists(path) and os.path.getsize(path) > 0) or not p.running(),
                 "the capture to start")
        self.assertTrue(p.running(), p.output())
        return p

    def stop_capture(self, p):
        p.signal(signal.SIGINT)
        self.assertEqual(p.wait(), 0, p.output())

    def judge(self, path, *args):
        """The decoders' opinion: tshark without expert warnings, ICRCs by scapy."""
        done = subprocess.run(["/usr/bin/python3", os.path.join(Build.judges, "check_capture.py"), *args, path],
                              capture_output=True, text=True, timeout=600)
        self.assertEqual(done.returncode, 0, done.stdout + done.stderr)
        return done.stdout

    def packets(self, path, display_filter="infiniband"):
        done = subprocess.run(["tshark", "-r", path, "-Y", display_filter, "-T", "fields", "-e",
                              "infiniband.bth.opcode"],
                              capture_output=True, text=True, timeout=600)
        self.assertEqual(done.returncode, 0, done.stderr)
        return done.stdout.split()
