"""NIC processes on one network, in the ways that a port can be connected."""

import os
import signal
import socket
import subprocess
import unittest

import harness
from harness import wait_for
import lab
from lab import PortNic

network = None


def setUpModule():
    global network
    network = lab.Lab()


class NetTest(unittest.TestCase):
    maxDiff = None
    _port = 21000

    def verbs_pair(self, server, client, *words, gid=3):
        """Runs verbs_pair between two NIC processes; both ends must succeed."""
        first, second = self.start_pair(server, client, *words, gid=gid)
        status = second.wait(100)
        other = first.wait(20)
        if status or other:
            self.fail(f"{words}, GID {gid}: client {status}\n{second.output()}\nserver {other}\n{first.output()}\n"
                      f"{client.command('status', check=False).stdout}{server.command('status', check=False).stdout}")

    def start_pair(self, server, client, *words, gid=3, client_words=()):
        NetTest._port += 1
        line = [os.path.join(harness.Build.progs, "verbs_pair"), "-g", str(gid), "-p", str(NetTest._port), *map(str, words)]
        first = server.start(line)
        wait_for(lambda: harness.listening(NetTest._port) or not first.running(), "verbs_pair to listen")
        return first, client.start([*line, *client_words, "127.0.0.1"])

    def everything(self, a, b, gids=(3,)):
        for gid in gids:
            for operation in ("send", "write", "read", "atomic"):
                self.verbs_pair(a, b, "-o", operation, "-s", "1,1023,4097,65537", "-n", 4, gid=gid)
            self.verbs_pair(b, a, "-o", "send_imm", "-t", "ud", "-s", "1,255,1000", "-n", 4, gid=gid)


class AfPacket(NetTest):
    def test_both_versions_and_families(self):
        a = PortNic(self, network, "nic0", "10.200.0.1", "fd00:200::1")
        b = PortNic(self, network, "nic1", "10.200.0.2", "fd00:200::2")
        self.everything(a, b, gids=(0, 1, 2, 3, 4, 5))
        for nic in (a, b):
            port = nic.status()["ports"][0]
            self.assertEqual(port["link"], "up")
            self.assertEqual(port["counters"]["tx_dropped"], 0)
            self.assertGreater(port["switch"]["tx_frames"], 0)
        mac = b.status()["ports"][0]["mac"]
        known = {n["address"]: n["mac"] for n in a.status()["ports"][0]["neighbours"]}
        self.assertEqual((known["10.200.0.2"], known["fd00:200::2"]), (mac, mac))
        self.assertIn(f"neighbour 10.200.0.2  {mac}", a.command("status").stdout)

    def test_jumbo(self):
        a = PortNic(self, network, "nic0", "10.200.0.1", mtu=9000)
        b = PortNic(self, network, "nic1", "10.200.0.2", mtu=9000)
        self.assertEqual(a.status()["devices"][0]["active_mtu"], 4096)
        self.everything(a, b)

    def test_vlan(self):
        """Addresses in a VLAN are reached there, and only there."""
        a = PortNic(self, network, "nic0", "10.200.0.1", options=["--ip", "10.7.0.1/24%7"])
        b = PortNic(self, network, "nic1", "10.200.0.2", options=["--ip", "10.7.0.2/24%7"])
        gids = {g["gid"]: g for g in a.status()["devices"][0]["gids"] if g["type"] == "RoCE v2"}
        entry = gids["::ffff:10.7.0.1"]
        self.assertEqual(entry["vlan"], 7)
        self.everything(a, b, gids=(entry["index"], entry["index"] - 1))
        # An address of the VLAN does not answer outside of it.
        lab.ip("addr", "add", "10.7.0.254/24", "dev", lab.BRIDGE)
        self.addCleanup(lab.ip, "addr", "del", "10.7.0.254/24", "dev", lab.BRIDGE)
        self.assertNotEqual(subprocess.run(["ping", "-c", "1", "-W", "1", "10.7.0.1"], capture_output=True).returncode, 0)

    def test_unreachable_neighbour_ends_in_an_error(self):
        """The server names a GID that nobody has: the client's retries are exceeded, nothing hangs."""
        nic = PortNic(self, network, "nic0", "10.200.0.1")
        for gid in ("0" * 20 + "ffff0ac800c8", "0" * 20 + "ffff08080808"):  # on the link, and without a route
            with self.subTest(gid=gid), socket.create_server(("", 0)) as listener:
                client = nic.start(["ibv_rc_pingpong", "-d", "roce0", "-g", "3", "-n", "1",
                                    "-p", str(listener.getsockname()[1]), "127.0.0.1"])
                with listener.accept()[0] as connection:
                    hello = connection.recv(200)
                    # The answer has the form of the greeting: LID, QPN, PSN, GID.
                    connection.sendall(f"0000:000011:000000:{gid}".encode().ljust(len(hello), b"\0"))
                    self.assertNotEqual(client.wait(60), 0)
                self.assertIn("retry counter exceeded", client.output())
        port = nic.status()["ports"][0]
        counters = port["counters"]
        states = {n["address"]: n["state"] for n in port["neighbours"]}
        self.assertIn(states["10.200.0.200"], ("failed", "incomplete"))
        self.assertGreater(counters["tx_unreachable"], 0)
        self.assertEqual(counters["tx_dropped"], 0)

    def test_the_wire_carries_what_the_capture_shows(self):
        a = PortNic(self, network, "nic0", "10.200.0.1")
        b = PortNic(self, network, "nic1", "10.200.0.2")
        wire, ours = (os.path.join(harness.Build.workdir, name) for name in ("wire.pcapng", "ours.pcapng"))
        watcher = harness.Process(["tshark", "-q", "-i", "nic0-br", "-f", "udp port 4791", "-w", wire], harness.base_env())
        self.addCleanup(watcher.close)
        wait_for(lambda: "Capturing on" in watcher.output() and os.path.exists(wire), "tshark to start")
        capture = a.start([harness.softrnic(), "capture", "-w", ours])
        wait_for(lambda: os.path.exists(ours) and os.path.getsize(ours) > 0, "the capture to start")
        self.verbs_pair(a, b, "-o", "send", "-s", "1,4097,65537", "-n", 4)
        self.verbs_pair(a, b, "-o", "read", "-s", "1,4097,65537", "-n", 4)
        capture.signal(signal.SIGINT)
        self.assertEqual(capture.wait(), 0, capture.output())
        shown = self.packets(ours)
        self.assertGreater(len(shown), 100)
        wait_for(lambda: self.packets(wire) == shown, "both to have the same packets", timeout=20, interval=1)

    @staticmethod
    def packets(path):
        """All that identifies a packet, in no order: the two directions are seen at different places."""
        fields = ("ip.src", "infiniband.bth.opcode", "infiniband.bth.destqp", "infiniband.bth.psn", "infiniband.bth.a",
                  "udp.length", "infiniband.invariant.crc")
        done = subprocess.run(["tshark", "-r", path, "-Y", "infiniband", "-T", "fields", *(w for f in fields for w in ("-e", f))],
                              env=harness.base_env(), capture_output=True, text=True)
        return sorted(done.stdout.splitlines())

    def test_bystanders_are_idle(self):
        """A NIC process on a quiet network uses no measurable CPU, and wakes up for a frame."""
        a = PortNic(self, network, "nic0", "10.200.0.1")
        before = harness.cpu_seconds(a.daemon_pid())
        subprocess.run(["sleep", "2"], check=True)
        self.assertLess(harness.cpu_seconds(a.daemon_pid()) - before, 0.1)
        out = subprocess.run(["ping", "-c", "3", "-i", "0.3", "10.200.0.1"], capture_output=True, text=True)
        self.assertEqual(out.returncode, 0, out.stdout)


class Addresses(NetTest):
    """Addresses that come and go while programs run."""

    def test_added_and_removed(self):
        a = PortNic(self, network, "nic0", "10.200.0.1")
        b = PortNic(self, network, "nic1", "10.200.0.2")
        watcher = a.start(["stdbuf", "-oL", "ibv_asyncwatch", "-d", "roce0"])
        wait_for(lambda: "roce0" in watcher.output(), "ibv_asyncwatch to watch")
        for nic, address in ((a, "10.200.0.11/24"), (b, "10.200.0.12/24"), (a, "fd00:200::11/64"), (b, "fd00:200::12/64")):
            nic.command("address", "add", address)
        wait_for(lambda: "GID" in watcher.output(), "a GID change event")
        self.assertEqual(self.gids(a)[4:], ["::ffff:10.200.0.11"] * 2 + ["fd00:200::11"] * 2)
        self.everything(a, b, gids=(4, 5, 6, 7))

        before = watcher.output().count("GID")
        a.command("address", "del", "10.200.0.11/24")
        wait_for(lambda: watcher.output().count("GID") > before, "another GID change event")
        self.assertNotIn("::ffff:10.200.0.11", self.gids(a))
        self.verbs_pair(a, b, "-o", "send", "-s", "1,1000", "-n", 2, gid=7)  # the others keep their places
        gone = subprocess.run(["ping", "-c", "1", "-W", "1", "10.200.0.11"], capture_output=True)
        self.assertNotEqual(gone.returncode, 0)
        a.command("address", "add", "10.200.0.13/24")  # into the free place
        self.assertEqual(self.gids(a)[4:6], ["::ffff:10.200.0.13"] * 2)

    def test_programs_that_only_poll_hear_of_it(self):
        """The event's descriptor becomes readable in a program that calls no verb and has no queue pair."""
        nic = PortNic(self, network, "nic0", "10.200.0.1")
        program = nic.start([os.path.join(harness.Build.progs, "event_poll"), "roce0", "3"])
        wait_for(lambda: "waiting" in program.output() or not program.running(), "the program to wait")
        for number, words in enumerate((("add", "10.200.0.11/24"), ("del", "10.200.0.11"), ("add", "fd00:200::11/64")), 1):
            nic.command("address", *words)
            wait_for(lambda: program.output().count("GID table change") == number or not program.running(), "the event")
        self.assertEqual(program.wait(), 0, program.output())

    def gids(self, nic):
        return [g["gid"] for g in sorted(nic.status()["devices"][0]["gids"], key=lambda g: g["index"])]

    def test_mistakes(self):
        a = PortNic(self, network, "nic0", "10.200.0.1")
        for words, text in ((("add", "10.200.0.1/24"), "has this address already"),
                            (("add", "10.200.0.300"), "not an IPv4 or IPv6 address"),
                            (("del", "10.200.0.9"), "does not have this address"),
                            (("add", "10.200.0.9/24", "--device", "roce1"), "no device 'roce1'")):
            done = a.command("address", *words, check=False)
            self.assertNotEqual(done.returncode, 0)
            self.assertIn(text, done.stderr)
        local = harness.Nic(self)
        self.assertIn("on no network", local.command("address", "add", "10.0.0.1", check=False).stderr)

    def test_duplicates(self):
        """With duplicate detection an address that another station has is refused; a free one can be used at once."""
        a = PortNic(self, network, "nic0", "10.200.0.1", "fd00:200::1")
        for address in ("10.200.0.1/24", "fd00:200::1/64"):
            network.veth("nic1", 1500)
            self.addCleanup(network.remove, "nic1")
            other = harness.Nic(self, start=False)
            done = other.command("up", "--port", "net_af_packet0,iface=nic1", "--ip", address, "--detect-duplicates", "yes",
                                 check=False)
            self.assertNotEqual(done.returncode, 0)
            self.assertIn(f"the station {a.status()['ports'][0]['mac']} has it", done.stderr)
            network.remove("nic1")
        b = PortNic(self, network, "nic1", "10.200.0.2", options=["--detect-duplicates", "yes"])
        self.everything(a, b)


class Routed(NetTest):
    def test_gateway(self):
        """Two subnets with the kernel as the router between them."""
        lab.ip("addr", "add", "10.201.0.254/24", "dev", lab.BRIDGE)
        self.addCleanup(lab.ip, "addr", "del", "10.201.0.254/24", "dev", lab.BRIDGE)
        for scope in ("all", lab.BRIDGE):
            with open(f"/proc/sys/net/ipv4/conf/{scope}/send_redirects", "w") as f:
                f.write("0")
        with open("/proc/sys/net/ipv4/ip_forward", "w") as f:
            f.write("1")
        a = PortNic(self, network, "nic0", "10.200.0.1", options=["--route", lab.HOST_IP])
        b = PortNic(self, network, "nic1", "10.201.0.2", options=["--route", "10.200.0.0/16=10.201.0.254"])
        self.everything(a, b)


class OtherDevices(NetTest):
    def test_tap(self):
        nics = []
        for i in (1, 2):
            nic = TapNic(self, f"nt{i}", f"10.200.0.{i}")
            nics.append(nic)
        self.everything(*nics)

    def test_memif(self):
        path = os.path.join(harness.Build.workdir, "memif")
        nics = [DeviceNic(self, f"net_memif0,role={role},socket={path},socket-abstract=no", f"10.200.0.{i}", mac)
                for i, (role, mac) in enumerate((("server", "02:00:00:00:00:01"), ("client", "02:00:00:00:00:02")), 1)]
        self.everything(*nics)

    def test_two_ports(self):
        """One NIC process with two ports has two devices; each reaches its own neighbour."""
        for name in ("nic0", "nic0b2"):
            network.veth(name, 1500)
            self.addCleanup(network.remove, name)
        a = DeviceNic(self, "net_af_packet0,iface=nic0", "10.200.0.1", None,
                      ["--port", "net_af_packet1,iface=nic0b2", "--ip", "10.202.0.1/24"])
        self.assertEqual([d["name"] for d in a.status()["devices"]], ["roce0", "roce1"])
        b = PortNic(self, network, "nic1", "10.200.0.2")
        c = PortNic(self, network, "nic2", "10.202.0.2")
        self.verbs_pair(b, a, "-d", "roce0")
        server, client = self.start_pair(c, a, client_words=["-d", "roce1"])
        self.assertEqual(client.wait(100), 0, client.output())
        self.assertEqual(server.wait(20), 0, server.output())


class DeviceNic(harness.Nic):
    """A NIC process with a port on any device."""

    def __init__(self, test, device, address, mac, options=()):
        self.options = ["--port", device, "--ip", f"{address}/24", *(["--mac", mac] if mac else []), *options]
        super().__init__(test)

    def up(self):
        self.command("up", *self.options)


class TapNic(DeviceNic):
    """A NIC process behind a tap that it makes itself; the kernel's end is put into the bridge."""

    def __init__(self, test, name, address):
        self.name = name
        super().__init__(test, f"net_tap0,iface={name}", address, None)

    def up(self):
        super().up()
        lab.ip("link", "set", self.name, "master", lab.BRIDGE, "up")


class Mistakes(NetTest):
    """What the user gets wrong is told at once, and nothing is left running."""

    def expect(self, words, text):
        nic = harness.Nic(self, start=False)
        done = nic.command("up", *words, check=False)
        self.assertNotEqual(done.returncode, 0)
        self.assertIn(text, done.stdout + done.stderr)
        self.assertNotEqual(nic.command("status", check=False).returncode, 0)

    def test_messages(self):
        self.expect(["--port", "net_af_packet0,iface=nothere"], "there is no network interface 'nothere'")
        self.expect(["--port", "net_nothing0"], "no driver of this name")
        self.expect(["--port", "net_af_packet0,iface=lo", "--ip", "10.0.0.1/99"], "a prefix has 0 to 32 bits")
        self.expect(["--ip", "10.0.0.1/24"], "there is no port before it")

    def test_configuration_file(self):
        path = os.path.join(harness.Build.workdir, "ports.conf")
        with open(path, "w") as f:
            f.write("port net_af_packet0,iface=nic0\n  ip 10.200.0.1/24\n  speed 100\n")
        self.expect(["--config", path], "line 3: speed")
        with open(path, "w") as f:
            f.write("# one port\nport net_af_packet0,iface=nic0\n  ip 10.200.0.1/24\n  ip fd00:200::1/64\n")
        network.veth("nic0", 1500)
        self.addCleanup(network.remove, "nic0")
        nic = harness.Nic(self, start=False)
        nic.command("up", "--config", path)
        self.assertIn("fd00:200::1", [g["gid"] for g in nic.status()["devices"][0]["gids"]])

    def test_offloads(self):
        """Those that spoil what the port receives are told; the NIC works all the same."""
        network.veth("nic0", 1500)
        self.addCleanup(network.remove, "nic0")
        words = ["up", "--port", "net_af_packet0,iface=nic0", "--ip", "10.200.0.1/24"]
        for name in ("tx", "gro"):
            harness.Offloads.switch("nic0", name, True)
        nic = harness.Nic(self, start=False)
        said = nic.command(*words).stderr
        self.assertIn("offloads of interface nic0 are on (gro, ", said)
        self.assertIn("'ethtool -K nic0 gro off ", said)
        nic.command("down")
        for name in harness.Offloads.on("nic0"):
            harness.Offloads.switch("nic0", name, False)
        self.assertEqual(nic.command(*words).stderr, "")

    def test_running_already(self):
        nic = harness.Nic(self)
        done = nic.command("up", "--port", "net_af_packet0,iface=lo", check=False)
        self.assertNotEqual(done.returncode, 0)
        self.assertIn("running already", done.stderr)
