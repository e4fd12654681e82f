#!/usr/bin/env python3
"""Benchmarks of softrnic side by side with others, in one run.

Part "local": processes of one host; UCX over POSIX shared memory, and TCP over loopback. Part "network": two hosts at the ends of a
veth cable; UDP and TCP sockets, and DPDK's testpmd.

Every round runs each benchmark once, so that a change of the machine's load meets all of them; the result
of a benchmark is the median over the rounds. Runs as an ordinary user, with a NIC process of its own.
"""

import argparse
import json
import os
import platform
import re
import shlex
import shutil
import signal
import socket
import statistics
import subprocess
import sys
import tempfile
import time
import typing

import network

TIMEOUT = 300  # seconds for one run of one program

# What is wanted on one machine: (name, ours, theirs, "at most" or "at least", ratio ours / theirs).
REACH = (
    ("SEND latency, 2 B", "send_lat_2", "ucx_tag_lat", "at most", 5.0),
    ("WRITE bandwidth, 64 KiB", "write_bw_64k", "ucx_tag_bw_64k", "at least", 0.5),
    ("WRITE message rate, 8 B", "write_rate_8", "ucx_tag_rate_8", "at least", 0.3),
)

# Compared without a mark.
COMPARE = (
    ("WRITE latency, 2 B", "write_lat_2", "ucx_tag_lat"),
    ("READ latency, 2 B", "read_lat_2", "ucx_tag_lat"),
    ("SEND bandwidth, 64 KiB", "send_bw_64k", "ucx_tag_bw_64k"),
    ("READ bandwidth, 64 KiB", "read_bw_64k", "ucx_tag_bw_64k"),
    ("SEND message rate, 8 B", "send_rate_8", "ucx_tag_rate_8"),
    ("SEND latency, 2 B", "send_lat_2", "tcp_lat"),
    ("WRITE bandwidth, 64 KiB", "write_bw_64k", "tcp_bw_64k"),
)


def free_port():
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return s.getsockname()[1]


def listening(port):
    for table in ("/proc/net/tcp", "/proc/net/tcp6"):
        try:
            with open(table) as f:
                for line in f:
                    fields = line.split()
                    if fields[1].endswith(f":{port:04X}") and fields[3] == "0A":
                        return True
        except (FileNotFoundError, IndexError):
            pass
    return False


def run_pair(server_argv, client_argv, port, env, server_ends=True):
    """Runs a server and, when it listens, a client. Returns the client's output."""
    with tempfile.TemporaryFile("w+") as log:
        server = subprocess.Popen(server_argv, env=env, stdin=subprocess.DEVNULL, stdout=log, stderr=log)
        try:
            end = time.monotonic() + TIMEOUT
            while not listening(port):
                if server.poll() is not None or time.monotonic() > end:
                    log.seek(0)
                    raise RuntimeError(f"{shlex.join(server_argv)} does not listen:\n{log.read()}")
                time.sleep(0.01)
            client = subprocess.run(client_argv, env=env, stdin=subprocess.DEVNULL, capture_output=True, text=True,
                                    timeout=TIMEOUT)
            if client.returncode != 0:
                raise RuntimeError(f"{shlex.join(client_argv)}: exit {client.returncode}\n{client.stdout}{client.stderr}")
            if server_ends:
                server.wait(TIMEOUT)
            return client.stdout
        finally:
            if server.poll() is None:
                server.kill()
            server.wait()


class Ucx:
    def __init__(self):
        self.env = dict(os.environ, UCX_TLS="posix,self", UCX_WARN_UNUSED_ENV_VARS="n")

    def run(self, *args):
        port = free_port()
        argv = ["ucx_perftest", "-p", str(port)]
        out = run_pair(argv, [*argv, "127.0.0.1", "-f", "-v", *args], port, self.env)
        header, values = [line.split(",") for line in out.strip().splitlines() if "," in line][-2:]
        return dict(zip(header, map(float, values)))

    def tag_lat(self):
        return self.run("-t", "tag_lat", "-s", "2", "-n", "300000")["50.0_percentile_lat"]

    def tag_bw_64k(self):
        return self.run("-t", "tag_bw", "-s", "65536", "-n", "200000")["overall_bw"]

    def tag_rate_8(self):
        return self.run("-t", "tag_bw", "-s", "8", "-n", "10000000")["overall_mr"] / 1e6


class Tcp:
    def run(self, *args):
        port = free_port()
        argv = ["qperf", "-lp", str(port)]
        out = run_pair(argv, [*argv, "127.0.0.1", "-uu", "-t", "2", *args], port, os.environ, server_ends=False)
        return float(re.search(r"=\s+([\d.]+)", out).group(1))

    def lat(self):
        return self.run("-m", "2", "tcp_lat") / 1e3  # printed in ns

    def bw_64k(self):
        return self.run("-m", "65536", "tcp_bw") / 2**20  # printed in bytes/s


class Softrnic:
    def __init__(self, build):
        self.command = os.path.join(build, "bin", "softrnic")
        self.dir = tempfile.mkdtemp(prefix="softrnic-bench-")
        self.env = dict(os.environ, SOFTRNIC_DIR=self.dir)
        self.env.pop("SOFTRNIC_SOCKET", None)
        subprocess.run([self.command, "up"], env=self.env, check=True, stdout=subprocess.DEVNULL)

    def close(self):
        subprocess.run([self.command, "down"], env=self.env, check=False)
        shutil.rmtree(self.dir, ignore_errors=True)

    def run(self, program, *args):
        """The columns behind `#bytes #iterations` of perftest's row."""
        port = free_port()
        argv = [self.command, "run", "--", program, "-F", "-p", str(port), *args]
        out = run_pair(argv, [*argv, "127.0.0.1"], port, self.env)
        row = re.search(r"^ *\d+ +\d+ +(\d.*)$", out, re.M)
        return [float(x) for x in row.group(1).split()]

    def latency(self, program):
        return self.run(program, "-s", "2", "-n", "20000")[2]  # t_min t_max t_typical (the median)

    def bandwidth(self, program):
        return self.run(program, "-s", "65536", "-n", "100000")[1]  # peak, average in MiB/s

    def rate(self, program):
        return self.run(program, "-s", "8", "-n", "4000000", "-N")[2]  # peak, average, Mpps


def benchmarks(softrnic):
    """name: (unit, function)"""
    ucx, tcp = Ucx(), Tcp()
    return {
        "ucx_tag_lat": ("us", ucx.tag_lat),
        "send_lat_2": ("us", lambda: softrnic.latency("ib_send_lat")),
        "write_lat_2": ("us", lambda: softrnic.latency("ib_write_lat")),
        "read_lat_2": ("us", lambda: softrnic.latency("ib_read_lat")),
        "tcp_lat": ("us", tcp.lat),
        "ucx_tag_bw_64k": ("MiB/s", ucx.tag_bw_64k),
        "write_bw_64k": ("MiB/s", lambda: softrnic.bandwidth("ib_write_bw")),
        "send_bw_64k": ("MiB/s", lambda: softrnic.bandwidth("ib_send_bw")),
        "read_bw_64k": ("MiB/s", lambda: softrnic.bandwidth("ib_read_bw")),
        "tcp_bw_64k": ("MiB/s", tcp.bw_64k),
        "ucx_tag_rate_8": ("M/s", ucx.tag_rate_8),
        "write_rate_8": ("M/s", lambda: softrnic.rate("ib_write_bw")),
        "send_rate_8": ("M/s", lambda: softrnic.rate("ib_send_bw")),
    }


def measure(table, rounds):
    values = {name: [] for name in table}
    for r in range(rounds):
        for name, (unit, function) in table.items():
            print(f"\rround {r + 1} of {rounds}: {name:20}", end="", file=sys.stderr, flush=True)
            values[name].append(function())
    print("\r" + " " * 50 + "\r", end="", file=sys.stderr)
    return values


def report(table, values, reach, compare):
    """Prints the tables and returns the same as a value for JSON."""
    median = {name: statistics.median(v) for name, v in values.items()}
    print(f"{'benchmark':20} {'median':>12} {'lowest':>12} {'highest':>12}  unit")
    for name, (unit, _) in table.items():
        v = values[name]
        print(f"{name:20} {median[name]:12.3f} {min(v):12.3f} {max(v):12.3f}  {unit}")
    ratios = []
    print(f"\n{'comparison':26} {'softrnic':>12} {'other':>12} {'ratio':>8}  wanted")
    for text, ours, theirs, *mark in (*reach, *compare):
        ratio = median[ours] / median[theirs]
        entry = {"name": text, "ours": ours, "theirs": theirs, "ratio": ratio}
        wanted = ""
        if mark:
            direction, limit = mark
            entry["wanted"] = f"{direction} {limit}"
            entry["reached"] = ratio <= limit if direction == "at most" else ratio >= limit
            wanted = f"{direction} {limit:g}: {'reached' if entry['reached'] else 'NOT REACHED'}"
        ratios.append(entry)
        other = theirs.removeprefix("net_").split("_")[0].upper()
        print(f"{text:26} {median[ours]:12.3f} {median[theirs]:12.3f} {ratio:8.2f}  {other}  {wanted}")
    return {
        "machine": {"cpus": os.cpu_count(), "kernel": platform.release(), "arch": platform.machine()},
        "benchmarks": {n: {"unit": table[n][0], "median": median[n], "runs": values[n]} for n in table},
        "ratios": ratios,
    }


class Part(typing.NamedTuple):
    make: typing.Callable  # of the build directory: what is measured; it has close()
    benchmarks: typing.Callable  # of that: name: (unit, function)
    reach: tuple
    compare: tuple
    programs: tuple


PARTS = {
    "local": Part(Softrnic, benchmarks, REACH, COMPARE, ("ucx_perftest", "qperf", "ib_send_lat")),
    "network": Part(network.Network, network.benchmarks, network.REACH, network.COMPARE, network.PROGRAMS),
}


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--build", default="build/release", help="build directory (build/release)")
    parser.add_argument("--part", choices=PARTS, default="local", help="what is measured (local)")
    parser.add_argument("--rounds", type=int, default=5, help="rounds (5)")
    parser.add_argument("--only", metavar="REGEX", default=".", help="only benchmarks whose name matches; no ratios then")
    parser.add_argument("--json", metavar="FILE", help="write the results as JSON, too")
    parser.add_argument("--check", action="store_true", help="fail when a wanted ratio is not reached")
    args = parser.parse_args()

    part = PARTS[args.part]
    for program in part.programs:
        if not shutil.which(program):
            sys.exit(f"bench: {program} is missing; tools/install-deps.sh installs it")
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # so that what we started ends with us
    subject = part.make(os.path.abspath(args.build))
    try:
        table = {n: b for n, b in part.benchmarks(subject).items() if re.search(args.only, n)}
        values = measure(table, args.rounds)
    finally:
        subject.close()
    if args.only != ".":
        for name, v in values.items():
            print(f"{name:20} {statistics.median(v):12.3f}  {table[name][0]}")
        return
    result = report(table, values, part.reach, part.compare)
    if args.json:
        with open(args.json, "w") as f:
            json.dump(result, f, indent=2)
            f.write("\n")
    if args.check and not all(r.get("reached", True) for r in result["ratios"]):
        sys.exit(1)


if __name__ == "__main__":
    main()
