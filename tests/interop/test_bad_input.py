"""A day of bad input: damaged captures and rubbish come in by a port while programs work.

A bad frame every fifth of a second for a day, within half a minute. The seed is SOFTRNIC_SEED, or always the same one. When the
test fails, what it took is in bad-input/ in the directory it runs in.
"""

import os
import shutil
import signal
import subprocess

import harness
from harness import wait_for
import lab
from lab import PortNic
from test_net import NetTest

FRAMES, RATE, SECONDS = 432000, 16000, 60
OURS, PEER, VLAN_OURS, VLAN_PEER = "10.200.0.1", "10.200.0.2", "10.7.0.1", "10.7.0.2"
STRANGER = f"::ffff:{lab.HOST_IP}"  # what the bad frames come from; that the kernel has the address makes it resolvable
KEPT = "bad-input"

network = None


def setUpModule():
    global network
    network = lab.Lab()


class BadInput(NetTest):
    def setUp(self):
        self.seed = os.environ.get("SOFTRNIC_SEED", "1")
        self.a = PortNic(self, network, "nic0", OURS, "fd00:200::1", options=["--ip", f"{VLAN_OURS}/24%7"])
        self.b = PortNic(self, network, "nic1", PEER, "fd00:200::2", options=["--ip", f"{VLAN_PEER}/24%7"])

    def file(self, name):
        return os.path.join(harness.Build.workdir, name)

    def test_a_day(self):
        captures = self.record()
        before = self.quiet_status()
        victims = self.a.start([os.path.join(harness.Build.progs, "victims"), "-d", "roce0", "-g", "3", "-x", STRANGER])
        wait_for(lambda: "victims " in victims.output() or not victims.running(), "the victims")
        _, qpns, rkey, address = victims.output().split()[:4]
        bystander, peer = self.start_bystanders()
        spared = [g["gid"] for g in self.b.status()["devices"][0]["gids"]]
        storm = self.a.start([os.path.join(harness.Build.progs, "storm"), "-i", "nic0-br", "-m", before["ports"][0]["mac"],
                              "-g", f"::ffff:{OURS}", "-x", STRANGER, "-v", qpns, "-k", rkey, "-b", address,
                              "-l", ",".join(str(q) for q in self.qpns_of(bystander.pid)), "-p", ",".join(sorted(set(spared))),
                              "-n", str(FRAMES), "-r", str(RATE), "-t", str(SECONDS), "-s", self.seed, "-w", self.file("last.pcap"), *captures])
        try:
            wait_for(lambda: not storm.running() or not all(p.running() for p in (victims, bystander, peer)), "the storm to pass")
            for process in (victims, bystander, peer):
                self.assertTrue(process.running(), f"{process.name}:\n{process.output()}")
            self.assertEqual(storm.wait(), 0, storm.output())
            self.account(before, storm, victims, bystander, peer)
            self.after(victims, bystander, peer)
        except BaseException:
            self.keep(storm, captures)
            raise

    # ---- before ----
    def record(self):
        """Captures of everything that a port sees in a normal life."""
        wire, opcodes = self.file("wire.pcapng"), self.file("opcodes.pcapng")
        subprocess.run([os.path.join(harness.Build.bin, "..", "tests", "judges", "make_frames"), opcodes], check=True)
        env = {k: v for k, v in harness.base_env().items() if k != "LD_PRELOAD"}  # it is not what is tested here
        watcher = harness.Process(["tshark", "-q", "-i", "nic0-br", "-w", wire], env)
        self.addCleanup(watcher.close)
        wait_for(lambda: "Capturing on" in watcher.output() and os.path.exists(wire) or not watcher.running(),
                 "tshark to start")
        self.assertTrue(watcher.running(), watcher.output())
        lab.ip("link", "set", lab.BRIDGE, "type", "bridge", "mcast_querier", "1")  # IGMP and MLD queries
        for gid in (0, 1, 2, 3, 4, 5, 7, 9):
            for operation in ("send", "read", "atomic"):
                self.verbs_pair(self.a, self.b, "-o", operation, "-s", "1,1023,4097", "-n", 2, gid=gid)
        self.verbs_pair(self.a, self.b, "-o", "send_imm", "-t", "ud", "-s", "1,1000", "-n", 2)
        for address in (OURS, "fd00:200::1"):
            self.ping(address)
        watcher.signal(signal.SIGINT)
        self.assertEqual(watcher.wait(), 0, watcher.output())
        return [wire, opcodes]

    def ping(self, address):
        done = subprocess.run(["ping", "-c", "1", "-W", "10", address], capture_output=True, text=True)
        self.assertEqual(done.returncode, 0, done.stdout + done.stderr)

    def start_bystanders(self):
        """verbs_pair that goes on until it is told to end; its server is at the port that gets the bad input."""
        server, client = self.start_pair(self.a, self.b, "-o", "send_imm", "-s", "1,1023,4097,65537", "-n", 4, "-T", 17,
                                         "-R")
        wait_for(lambda: self.qpns_of(server.pid), "queue pairs")
        return server, client

    def qpns_of(self, pid):
        return [q["qpn"] for p in self.a.status()["processes"] if p["pid"] == pid for q in p["queue_pairs"]
                if q["state"] == "RTS"]

    # ---- after ----
    def quiet_status(self):
        """The status when no more frames come."""
        seen = [None]

        def quiet():
            status = self.a.status()
            for port in status["ports"]:
                del port["neighbours"]  # they age
            seen.append((status["ports"], [(p["received"], p["switch"]) for p in status["processes"]]))
            return status if seen[-1] == seen[-2] else None
        try:
            return wait_for(quiet, "silence", timeout=60, interval=0.3)
        except AssertionError:
            self.fail(f"frames keep coming: {seen[-2:]}")

    def account(self, before, storm, victims, bystander, peer):
        """Every frame that came to the port is where it belongs, or in the counter of a reason."""
        victims.signal(signal.SIGUSR1)
        peer.signal(signal.SIGSTOP)
        status = self.quiet_status()
        peer.signal(signal.SIGCONT)
        port, old = status["ports"][0], before["ports"][0]
        c, s = port["counters"], port["switch"]
        self.assertEqual(c["rx_frames"],
                         c["rx_other_station"] + c["rx_too_short"] + c["rx_reflected"] + c["rx_own"] + s["tx_frames"], port)
        sent = int(storm.output().split()[2])
        print(f"{sent} frames, {c['rx_frames'] - old['counters']['rx_frames']} came", end=" ", flush=True)
        # On a busy machine the kernel's queue in front of the port is full now and then.
        self.assertGreater(c["rx_frames"] - old["counters"]["rx_frames"], sent // 20)
        processes = {p["pid"]: p for p in status["processes"]}
        self.assertEqual(set(processes), {victims.pid, bystander.pid}, victims.output() + bystander.output())
        came = self.forwarded(port) - self.forwarded(old)
        self.assertEqual(came, sum(p["switch"]["rx_frames"] + p["switch"]["rx_out_of_buffer"] for p in processes.values()), status)
        for p in processes.values():
            received = dict(p["received"])
            total = received.pop("frames")
            self.assertEqual(total, p["switch"]["rx_frames"], p)
            self.assertEqual(total, sum(received.values()) + sum(q["counters"]["rcvd_pkts"] for q in p["queue_pairs"]), p)
        # Of everything there was something.
        self.assertGreater(s["tx_malformed"] * s["tx_bad_source"] * s["tx_unknown_destination"] * c["rx_other_station"], 0, port)
        for reason in ("bad_icrc", "wrong_source", "wrong_transport"):
            self.assertGreater(processes[victims.pid]["received"][reason], 0, processes[victims.pid])
        for reason in ("bad_icrc", "wrong_source"):
            self.assertGreater(processes[bystander.pid]["received"][reason], 0, processes[bystander.pid])

    @staticmethod
    def forwarded(port):
        s = port["switch"]
        return s["tx_frames"] - s["tx_malformed"] - s["tx_bad_source"] - s["tx_unknown_destination"] - s["tx_management"]

    def after(self, victims, bystander, peer):
        peer.signal(signal.SIGTERM)
        for process in (peer, bystander):
            self.assertEqual(process.wait(120), 0, process.output())
        victims.signal(signal.SIGTERM)
        self.assertEqual(victims.wait(), 0, victims.output())
        self.assertNotIn(" 0 messages", victims.output())
        for operation in ("send", "write", "read", "atomic"):
            self.verbs_pair(self.a, self.b, "-o", operation, "-s", "1,1023,4097", "-n", 2)
        for address in (OURS, "fd00:200::1"):
            self.ping(address)

    def keep(self, storm, captures):
        storm.signal(signal.SIGTERM)
        storm.wait()
        os.makedirs(KEPT, exist_ok=True)
        for path in (*captures, self.file("last.pcap")):
            if os.path.exists(path):
                shutil.copy(path, KEPT)
        for nic in (self.a, self.b):
            print(f"\n{nic.command('status', check=False).stdout}")
        print(f"\nThe last frames and the captures they were made of are in {os.path.abspath(KEPT)}; {storm.argv}")
