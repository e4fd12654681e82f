"""Against Linux's rxe: each side as client and as server."""

import os
import unittest

import harness
from harness import wait_for
import lab
from lab import PortNic
from peer_vm import PeerVm, image_directory

MTU = 4500  # of both network devices: RoCE packets of up to 4096 bytes
RXE_GID = {"ll": 0, "v4": 1, "v6": 2}
OURS, THEIRS = "softrnic", "rxe"
# In the machine; by their paths, since the shell prefers its own applets of these names.
TC, IP = "/usr/bin/tc", "/usr/bin/ip"

network = vm = nic = None


class ModuleScope:
    """What a Nic wants of a test: clean-ups, here of the whole module."""

    addCleanup = staticmethod(unittest.addModuleCleanup)


def setUpModule():
    global network, vm, nic
    network = lab.Lab()
    network.tap("tap0", MTU)
    vm = PeerVm(image_directory(lab.image_cache), "tap0", mtu=MTU)
    unittest.addModuleCleanup(vm.stop)
    vm.boot()
    vm.put(os.path.join(harness.Build.progs, "verbs_pair"), "verbs_pair")
    nic = PortNic(ModuleScope, network, "nic0", "10.200.0.1", "fd00:200::1", MTU)


class Side:
    """One end of a pair of programs."""

    def __init__(self, name, family="v4"):
        self.name, self.ours = name, name == OURS
        self.address = lab.HOST_IP if self.ours else vm.address
        self.device = "roce0" if self.ours else "rxe0"
        self.gid = PortNic.GID[family, "v2"] if self.ours else RXE_GID[family]
        self.process = None

    def start(self, words):
        words = [str(w) for w in words]
        if self.ours:
            if words[0] == "verbs_pair":
                words[0] = os.path.join(harness.Build.progs, "verbs_pair")
            self.process = nic.start(words)
        else:
            if words[0] == "verbs_pair":
                words[0] = "/tmp/verbs_pair"
            self.process = vm.start(" ".join(words))

    def listening(self, port):
        if self.ours:
            return harness.listening(port)
        return vm.run(f"netstat -ltn | grep -q ':{port} '")[0] == 0

    def wait(self, timeout):
        """(status, output)"""
        if not self.ours:
            return self.process.wait(timeout)
        try:
            return self.process.wait(timeout), self.process.output()
        except AssertionError as error:
            return 124, str(error)


class RxeTest(unittest.TestCase):
    maxDiff = None
    _port = 20000

    def pair(self, program, *words, server=THEIRS, family="v4", timeout=150, both=None, gids=None):
        """Runs a program on both sides to its end; both must succeed. By side name: `both` extra words, `gids` indices."""
        RxeTest._port += 1
        port = RxeTest._port
        ends = [Side(server, family), Side(OURS if server == THEIRS else THEIRS, family)]
        flag = {"verbs_pair": "-g"}.get(program, "-x" if program.startswith("ib_") else "-g")
        for side in ends:
            extra = (both or {}).get(side.name, [])
            gid = gids[side.name] if gids else side.gid
            line = [program, "-d", side.device, flag, gid, "-p", port, *words, *extra]
            if side is ends[0]:
                side.start(line)
                wait_for(lambda: side.listening(port) or not side.process.running(), f"{program} to listen")
            else:
                side.start([*line, ends[0].address])
        client = ends[1].wait(timeout)
        server_result = ends[0].wait(20 if client[0] else timeout)
        if client[0] != 0 or server_result[0] != 0:
            self.fail(f"{program} {' '.join(map(str, words))}, server {server}, {family}\n"
                      f"--- client ({ends[1].name}): status {client[0]}\n{client[1]}\n"
                      f"--- server ({server}): status {server_result[0]}\n{server_result[1]}")
        return server_result[1], client[1]

    def each_way(self, program, *words, **kw):
        for server in (THEIRS, OURS):
            with self.subTest(program=program, words=words, server=server, **kw):
                self.pair(program, *words, server=server, **kw)


class Host(RxeTest):
    """The NIC as a station on the LAN."""

    def test_ping(self):
        for address in ("10.200.0.1", "fd00:200::1"):
            with self.subTest(address=address):
                status, out = vm.run(f"ping -c 3 -s 1000 {address}")
                self.assertEqual(status, 0, out)

    def test_jumbo_ping(self):
        status, out = vm.run(f"ping -c 3 -s {MTU - 28} 10.200.0.1")
        self.assertEqual(status, 0, out)

    def test_its_mac_is_its_own(self):
        vm.run("ping -c 1 10.200.0.1")
        _, neighbours = vm.run("cat /proc/net/arp")
        device = nic.status()["devices"][0]
        self.assertIn(device["mac"], neighbours)
        self.assertNotIn(device["mac"], lab.ip("link"))

    def test_device_follows_the_port(self):
        device = nic.status()["devices"][0]
        self.assertEqual(device["active_mtu"], 4096)
        self.assertEqual([g["gid"] for g in device["gids"]][2:],
                         ["::ffff:10.200.0.1"] * 2 + ["fd00:200::1"] * 2)


class PingPong(RxeTest):
    def test_rc(self):
        self.each_way("ibv_rc_pingpong", "-c", "-n", 200)

    def test_uc(self):
        self.each_way("ibv_uc_pingpong", "-c", "-n", 200)

    def test_ud(self):
        self.each_way("ibv_ud_pingpong", "-c", "-n", 200)

    def test_srq(self):
        self.each_way("ibv_srq_pingpong", "-c", "-n", 200)

    def test_events(self):
        self.each_way("ibv_rc_pingpong", "-c", "-e", "-n", 200)

    def test_gids(self):
        for family in ("v6", "ll"):
            for program in ("ibv_rc_pingpong", "ibv_ud_pingpong"):
                self.each_way(program, "-n", 100, family=family)


OPERATIONS = ("send", "send_imm", "write", "write_imm", "read", "atomic")
# Every length mod 4, around the packet sizes, and large.
SIZES = "1,2,3,4,5,6,7,255,256,257,1023,1024,1025,1026,1027,4095,4096,4097,8191,65537,262145"


class Data(RxeTest):
    """Every byte checked."""

    def test_operations(self):
        for operation in OPERATIONS:
            self.each_way("verbs_pair", "-o", operation, "-s", SIZES, "-n", 8)

    def test_mtu(self):
        for mtu in (256, 512, 1024, 2048, 4096):
            for operation in ("send", "write", "read"):
                self.each_way("verbs_pair", "-o", operation, "-s", "1,255,257,4097,20001", "-n", 4, "-m", mtu)

    def test_unequal_mtu(self):
        """Each side asks for another MTU; the smaller one is used."""
        for ours, theirs in ((256, 4096), (4096, 1024)):
            for operation in ("send", "write", "read"):
                self.each_way("verbs_pair", "-o", operation, "-s", "1,257,4097,20001", "-n", 4,
                              both={OURS: ["-m", ours], THEIRS: ["-m", theirs]})

    def test_gids(self):
        for family in ("v6", "ll"):
            for operation in OPERATIONS:
                self.each_way("verbs_pair", "-o", operation, "-s", "3,1025,65537", "-n", 4, family=family)

    def test_one_mebibyte(self):
        for operation in ("send", "write", "read"):
            self.each_way("verbs_pair", "-o", operation, "-s", 1 << 20, "-n", 4)

    def test_srq(self):
        self.each_way("verbs_pair", "-o", "send", "-s", "1,1023,4097", "-r", "-q", 4, "-n", 16)

    def test_many_queue_pairs(self):
        for operation in ("send", "write", "read", "atomic"):
            self.each_way("verbs_pair", "-o", operation, "-s", "7,5001", "-q", 64, "-n", 128)

    def test_uc(self):
        for operation in ("send", "send_imm", "write_imm"):
            self.each_way("verbs_pair", "-t", "uc", "-o", operation, "-s", "1,2,3,1025,4097,20001", "-n", 4)

    def test_ud(self):
        for operation in ("send", "send_imm"):
            self.each_way("verbs_pair", "-t", "ud", "-o", operation, "-s", "1,2,3,255,1025,4096", "-n", 8)


class Perftest(RxeTest):
    # A time-out of a second: the emulated machine may take longer than the default to begin an answer of megabytes.
    COMMON = ("-F", "-u", 18)

    def test_bandwidth(self):
        for program in ("ib_send_bw", "ib_write_bw", "ib_read_bw"):
            self.each_way(program, *self.COMMON, "-s", 65536, "-n", 20)

    def test_latency(self):
        for program in ("ib_send_lat", "ib_write_lat", "ib_read_lat"):
            self.each_way(program, *self.COMMON, "-s", 1000, "-n", 20)

    def test_atomic(self):
        self.each_way("ib_atomic_bw", *self.COMMON, "-n", 50)

    def test_sizes(self):
        """Not -a: that goes on to 8 MiB, which takes an emulated machine minutes."""
        for program in ("ib_send_bw", "ib_write_bw", "ib_read_bw"):
            for size in (1, 4097, 1 << 20):
                self.each_way(program, *self.COMMON, "-s", size, "-n", 5, "-m", 4096)

    def test_queue_pairs(self):
        self.each_way("ib_write_bw", *self.COMMON, "-q", 16, "-n", 20, "-s", 4096)

    def test_datagrams(self):
        self.each_way("ib_send_bw", *self.COMMON, "-c", "UD", "-s", 1024, "-n", 20)


class Vlan(RxeTest):
    """Addresses in a VLAN on both sides; ours is added while the NIC runs."""

    VLAN, OURS, THEIRS = 7, "10.7.0.1", "10.7.0.2"

    def test_data(self):
        status, out = vm.run(f"{IP} link add link eth0 name eth0.7 type vlan id {self.VLAN} && "
                             f"{IP} addr add {self.THEIRS}/24 dev eth0.7 && {IP} link set eth0.7 up")
        self.assertEqual(status, 0, out)
        self.addCleanup(vm.run, f"{IP} link del eth0.7")
        nic.command("address", "add", f"{self.OURS}/24%{self.VLAN}")
        self.addCleanup(nic.command, "address", "del", f"{self.OURS}%{self.VLAN}")
        table = nic.status()["devices"][0]["gids"]
        ours = next(g["index"] for g in table if g["gid"] == f"::ffff:{self.OURS}" and g["type"] == "RoCE v2")
        theirs = wait_for(self.rxe_gid, "rxe's GID of the VLAN")
        gids = {OURS: ours, THEIRS: int(theirs)}
        for operation in OPERATIONS:
            self.each_way("verbs_pair", "-o", operation, "-s", "3,1025,65537", "-n", 4, gids=gids)
        self.each_way("verbs_pair", "-o", "send", "-t", "ud", "-s", "3,1025", "-n", 4, gids=gids)

    def rxe_gid(self):
        status, out = vm.run("cd /sys/class/infiniband/rxe0/ports/1 && grep -il 'ffff:0a07:0002' gids/*")
        return out.split()[0].split("/")[1] if status == 0 else None


class Loss(RxeTest):
    """Packets of RoCE lost in both directions; netem in the machine drops them."""

    UDP = "protocol ip flower ip_proto udp dst_port 4791"
    LOSE = (f"{TC} qdisc add dev eth0 root handle 1: prio bands 2 priomap 0 0 0 0 0 0 0 0 0 0 0 0 0 0 0 0 && "
            f"{TC} qdisc add dev eth0 parent 1:2 handle 2: netem loss {{0}}% limit 10000 && "
            f"{TC} filter add dev eth0 parent 1: {UDP} classid 1:2 && "
            f"{IP} link set ifb0 up && {TC} qdisc add dev ifb0 root handle 3: netem loss {{0}}% limit 10000 && "
            f"{TC} qdisc add dev eth0 ingress && "
            f"{TC} filter add dev eth0 ingress {UDP} action mirred egress redirect dev ifb0")
    RESTORE = f"{TC} qdisc del dev eth0 root; {TC} qdisc del dev eth0 ingress; {TC} qdisc del dev ifb0 root"

    def run_all(self, percent, sizes):
        status, out = vm.run(self.LOSE.format(percent))
        self.addCleanup(vm.run, self.RESTORE)
        self.assertEqual(status, 0, out)
        # A time-out of a second: a retry sooner than an emulated machine has worked off what it has makes it ever slower.
        for operation in OPERATIONS:
            self.each_way("verbs_pair", "-o", operation, "-s", sizes, "-n", 4, "-m", 1024, "-T", 18)
        for device in ("eth0", "ifb0"):  # else nothing was tested
            _, out = vm.run(f"{TC} -s qdisc show dev {device}")
            self.assertRegex(out, r"netem [^\n]*loss[^\n]*\n[^\n]*dropped [1-9]", out)

    def test_one_in_a_thousand(self):
        self.run_all(0.1, "1,1025,262145,262146")  # as much as it takes to lose some surely

    def test_one_in_a_hundred(self):
        self.run_all(1, "1,1025,65537")
