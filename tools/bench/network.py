"""Benchmarks on a network: two hosts at the two ends of a veth cable, in namespaces of an ordinary user.

softrnic over af_packet with Debian's perftest, kernel sockets with iperf3, and DPDK's testpmd, one after the other on the same
pair. The NIC processes run only while they are measured: their packet sockets would cost the others time.
"""

import json
import os
import re
import shutil
import signal
import subprocess
import tempfile
import time

PAYLOAD = 1024  # of an RDMA packet: the largest power of two below an MTU of 1500
# A packet in the middle of a message: IPv4, UDP, BTH, payload, ICRC. The same for all, as far as they can.
IP_PACKET = 20 + 8 + 12 + PAYLOAD + 4
UDP_PAYLOAD = IP_PACKET - 28
FRAME = IP_PACKET + 14
SECONDS = 3  # of each measurement
TIMEOUT = 120

LAB = {"networks": {"wire": {"cable": True}},
       "hosts": {"a": {"interfaces": [{"network": "wire", "ip": "10.0.0.101/24"}]},
                 "b": {"interfaces": [{"network": "wire", "ip": "10.0.0.102/24"}]}}}

# (name, ours, theirs, direction, limit), as in bench.py.
REACH = (
    ("SEND against UDP sockets", "net_send_bw", "net_udp_bw", "at least", 0.5),
    ("WRITE against UDP sockets", "net_write_bw", "net_udp_bw", "at least", 0.5),
    ("packets against testpmd", "net_write_rate", "net_testpmd_rate", "at least", 0.4),
    ("eSwitch against testpmd", "net_switch_rate", "net_testpmd_io_rate", "at least", 0.9),
)
COMPARE = (
    ("WRITE against TCP sockets", "net_write_bw", "net_tcp_bw"),
)
PROGRAMS = ("iperf3", "dpdk-testpmd", "ib_write_bw", "ip")


class Network:
    def __init__(self, build):
        self.build = build
        self.command = os.path.join(build, "bin", "softrnic")
        self.dir = tempfile.mkdtemp(prefix="softrnic-bench-")
        self.env = {k: v for k, v in os.environ.items() if k != "SOFTRNIC_SOCKET"}
        self.env["SOFTRNIC_DIR"] = os.path.join(self.dir, "run")
        description = os.path.join(self.dir, "bench.json")
        with open(description, "w") as f:
            json.dump(LAB, f)
        done = subprocess.run([self.command, "net", "up", description], env=self.env, capture_output=True, text=True)
        if done.returncode != 0:
            shutil.rmtree(self.dir, ignore_errors=True)
            raise RuntimeError(done.stderr.strip())

    def close(self):
        subprocess.run([self.command, "net", "down", "--all"], env=self.env, check=False)
        shutil.rmtree(self.dir, ignore_errors=True)

    def words(self, host, *words):
        return [self.command, "net", "exec", host, "--", *words]

    def run(self, host, *words):
        done = subprocess.run(self.words(host, *words), env=self.env, stdin=subprocess.DEVNULL, capture_output=True, text=True,
                              timeout=TIMEOUT)
        if done.returncode != 0:
            raise RuntimeError(f"{' '.join(words)} in {host}: exit {done.returncode}\n{done.stdout}{done.stderr}")
        return done.stdout

    def start(self, host, *words):
        return subprocess.Popen(self.words(host, *words), env=self.env, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                                stderr=subprocess.STDOUT, text=True)

    def listens(self, port):
        return re.search(rf":{port:04X} \S+ 0A", self.run("a", "cat", "/proc/net/tcp", "/proc/net/tcp6")) is not None

    def pair(self, port, server, client):
        """Runs a server in a and, when it listens, its client in b. Returns the client's output."""
        process = self.start("a", *server)
        try:
            end = time.monotonic() + TIMEOUT
            while not self.listens(port):
                if process.poll() is not None or time.monotonic() > end:
                    raise RuntimeError(f"{' '.join(server)} does not listen:\n{process.stdout.read()}")
                time.sleep(0.02)
            return self.run("b", *client)
        finally:
            process.terminate()
            process.communicate()

    # --- softrnic ---

    def perftest(self, program):
        """(MiB/s, packets/s) of messages of 64 KiB."""
        for host, number in (("a", 1), ("b", 2)):
            self.run(host, self.command, "up", "--port", "net_af_packet0,iface=eth0", "--ip", f"10.0.0.{number}/24")
        try:
            argv = [program, "-F", "-x", "3", "-m", str(PAYLOAD), "-s", "65536", "-D", str(SECONDS)]
            out = self.pair(18515, argv, [*argv, "10.0.0.101"])
        finally:
            for host in "ab":
                self.run(host, self.command, "down")
        row = re.search(r"^ *\d+ +\d+ +(\d.*)$", out, re.M)
        bandwidth = float(row.group(1).split()[1])
        return bandwidth, bandwidth * 2**20 / PAYLOAD

    # --- kernel sockets ---

    def iperf3(self, *options):
        argv = ["iperf3", "-p", "5201"]
        out = json.loads(self.pair(5201, [*argv, "-s", "-1"],
                                   [*argv, "-c", "10.0.0.101", "-J", "-t", str(SECONDS), *options]))["end"]
        return out

    def udp(self):
        total = self.iperf3("-u", "-b", "0", "-l", str(UDP_PAYLOAD))["sum"]
        return total["bits_per_second"] * (1 - total["lost_percent"] / 100) / 8 / 2**20

    def tcp(self):
        return self.iperf3()["sum_received"]["bits_per_second"] / 8 / 2**20

    # --- testpmd ---

    def testpmd(self, name, vdevs, *options):
        words = ["dpdk-testpmd", "--no-huge", "-m", "128", "--no-pci", "--no-telemetry", "--no-shconf", "--file-prefix",
                 f"bench-{name}", "--log-level", "*:error", "--lcores", f"(0-1)@(0-{os.cpu_count() - 1})"]
        for vdev in vdevs:
            words += ["--vdev", vdev]
        return [*words, "--", "--total-num-mbufs=8192", "--stats-period", "1", *options]

    @staticmethod
    def rates(output):
        """Packets received per second by all ports, of the seconds in the middle."""
        seconds = {}
        for number, rate in enumerate(map(float, re.findall(r"Rx-pps: +(\d+)", output))):
            seconds.setdefault(number, rate)
        return list(seconds.values())

    def testpmd_pair(self):
        """txonly in b, rxonly in a."""
        device = ["net_af_packet0,iface=eth0"]
        receiver = self.start("a", "timeout", "-s", "INT", str(SECONDS + 5), *self.testpmd("rx", device,
                                                                                        "--forward-mode=rxonly"))
        sender = self.start("b", "timeout", "-s", "INT", str(SECONDS + 4), *self.testpmd("tx", device, "--forward-mode=txonly",
                                                                                      f"--txpkts={FRAME}"))
        try:
            output = receiver.communicate(timeout=TIMEOUT)[0]
        finally:
            for process in (receiver, sender):
                process.terminate()
            sender.communicate()
        rates = sorted(self.rates(output))
        if not rates or rates[-1] == 0:
            raise RuntimeError(f"testpmd received nothing:\n{output}")
        return rates[len(rates) // 2] / 1e6

    def testpmd_io(self):
        """Between two devices whose packets are copied in and out, as the eSwitch copies them."""
        device = f"size={FRAME},copy=1"
        words = self.testpmd("io", [f"net_null0,{device}", f"net_null1,{device}"], "--forward-mode=io")
        out = subprocess.run(["timeout", "-s", "INT", str(SECONDS), *words], capture_output=True, text=True,
                             stdin=subprocess.DEVNULL).stdout
        rates = self.rates(out)
        both = [x + y for x, y in zip(rates[::2], rates[1::2])]
        if not both:
            raise RuntimeError(f"testpmd forwarded nothing:\n{out}")
        return max(both) / 1e6

    # --- the eSwitch alone ---

    def eswitch(self):
        out = subprocess.run([os.path.join(self.build, "bin", "switchbench"), str(PAYLOAD), str(SECONDS)], check=True,
                             capture_output=True, text=True).stdout
        return float(out.split()[0]) / 1e6


def benchmarks(network):
    """name: (unit, function)"""
    last = {}

    def write_bw():
        last["rate"] = network.perftest("ib_write_bw")
        return last["rate"][0]

    return {
        "net_write_bw": ("MiB/s", write_bw),
        "net_write_rate": ("M/s", lambda: last["rate"][1] / 1e6),  # of the same run
        "net_send_bw": ("MiB/s", lambda: network.perftest("ib_send_bw")[0]),
        "net_udp_bw": ("MiB/s", network.udp),
        "net_tcp_bw": ("MiB/s", network.tcp),
        "net_testpmd_rate": ("M/s", network.testpmd_pair),
        "net_switch_rate": ("M/s", network.eswitch),
        "net_testpmd_io_rate": ("M/s", network.testpmd_io),
    }
