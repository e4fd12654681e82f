"""A network of its own: a namespace with a bridge, that the peer VM and the NIC processes are plugged into.

The caller runs in the namespace already (interop.py puts it there), so all of this disappears with the processes in it.
"""

import os
import subprocess
import sys

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path.insert(0, os.path.join(os.path.dirname(HERE), "apps"))

import harness  # noqa: E402

BRIDGE = "br0"
HOST_IP, HOST_IP6 = "10.200.0.254", "fd00:200::fe"
MAX_MTU = 9000

image_cache = None  # where the image of the peer VM is; filled in by interop.py


def ip(*words):
    done = subprocess.run(["ip", *words], capture_output=True, text=True)
    if done.returncode != 0:
        raise RuntimeError(f"ip {' '.join(words)}: {done.stderr.strip()}")
    return done.stdout


def why_no_lab():
    """Why no network can be made here, or None."""
    if not os.path.exists("/dev/net/tun"):
        return "no /dev/net/tun: neither the VM nor a tap port can be connected"
    try:
        with open("/dev/net/tun", "r+b", buffering=0):
            return None
    except OSError as error:
        return f"/dev/net/tun: {error.strerror}"


class Lab:
    """The bridge with the test's own address on it."""

    def __init__(self):
        ip("link", "set", "lo", "up")
        for setting in ("accept_dad", "router_solicitations"):
            for scope in ("all", "default"):
                with open(f"/proc/sys/net/ipv6/conf/{scope}/{setting}", "w") as f:
                    f.write("0")
        ip("link", "add", BRIDGE, "mtu", str(MAX_MTU), "type", "bridge")
        ip("addr", "add", f"{HOST_IP}/24", "dev", BRIDGE)
        ip("addr", "add", f"{HOST_IP6}/64", "dev", BRIDGE)
        ip("link", "set", BRIDGE, "up")

    def veth(self, name, mtu):
        """A cable: `name` for the NIC process, its other end in the bridge."""
        ip("link", "add", name, "mtu", str(mtu), "type", "veth", "peer", "name", f"{name}-br", "mtu", str(MAX_MTU))
        ip("link", "set", f"{name}-br", "master", BRIDGE, "up")
        # The kernel's own stack stays silent on this end.
        with open(f"/proc/sys/net/ipv6/conf/{name}/disable_ipv6", "w") as f:
            f.write("1")
        ip("link", "set", name, "up")

    def tap(self, name, mtu):
        ip("tuntap", "add", name, "mode", "tap")
        # As long a queue as the machine is slow: it emulates its processor.
        ip("link", "set", name, "mtu", str(mtu), "txqueuelen", "10000", "master", BRIDGE, "up")

    @staticmethod
    def remove(name):
        subprocess.run(["ip", "link", "del", name], capture_output=True)


class PortNic(harness.Nic):
    """A NIC process with a port in the bridge."""

    def __init__(self, test, lab, name, address, address6=None, mtu=1500, options=()):
        self.address, self.address6, self.mtu = address, address6, mtu
        self.options = ["--port", f"net_af_packet0,iface={name}", "--ip", f"{address}/24"]
        if address6:
            self.options += ["--ip", f"{address6}/64"]
        self.options += options
        lab.veth(name, mtu)
        test.addCleanup(lab.remove, name)
        super().__init__(test)

    def up(self):
        self.command("up", *self.options)

    # GID indices: v1 and v2 of each address, link-local first.
    GID = {("ll", "v1"): 0, ("ll", "v2"): 1, ("v4", "v1"): 2, ("v4", "v2"): 3, ("v6", "v1"): 4, ("v6", "v2"): 5}
