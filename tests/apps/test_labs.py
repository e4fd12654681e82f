"""softrnic net: labs of an ordinary user, and that nothing is left of them."""

import json
import os
import shutil
import signal
import subprocess
import tempfile
import unittest

import harness
from harness import Build, base_env, softrnic, wait_for

def setUpModule():
    done = subprocess.run(["unshare", "--user", "--map-root-user", "--net", "--pid", "--fork", "true"], capture_output=True,
                          text=True)
    if done.returncode != 0:
        raise unittest.SkipTest(f"this user cannot make namespaces: {done.stderr.strip()}")


class LabTest(unittest.TestCase):
    maxDiff = None

    def setUp(self):
        self.dir = tempfile.mkdtemp(prefix="lab-", dir=Build.workdir)
        self.runtime = os.path.join(self.dir, "run")
        self.env = dict(base_env(), SOFTRNIC_DIR=self.runtime)
        self.addCleanup(shutil.rmtree, self.dir, ignore_errors=True)
        self.addCleanup(self.net, "down", "--all", check=False)

    def net(self, *words, check=True):
        done = subprocess.run([softrnic(), "net", *words], env=self.env, capture_output=True, text=True,
                              stdin=subprocess.DEVNULL, timeout=harness.TIMEOUT)
        if check and done.returncode != 0:
            self.fail(f"softrnic net {words}: exit {done.returncode}\n{done.stdout}{done.stderr}")
        return done

    def refused(self, *words, says, status=1):
        done = self.net(*words, check=False)
        self.assertEqual(done.returncode, status, done.stdout + done.stderr)
        self.assertIn(says, done.stderr)

    def up(self, example, *words):
        self.net("up", os.path.join(Build.labs, example), *words)

    def execute(self, host, *words, check=True):
        return self.net("exec", host, "--", *words, check=check)

    def start(self, host, *words):
        process = harness.Process([softrnic(), "net", "exec", host, "--", *words], self.env)
        self.addCleanup(process.close)
        return process

    def labs(self):
        return {lab["name"]: lab for lab in json.loads(self.net("status", "--json").stdout)["labs"]}

    def lab(self, text):
        path = os.path.join(self.dir, "own.json")
        with open(path, "w") as f:
            f.write(text)
        return path

    def listens(self, host, port):
        return f":{port:04X} " in self.execute(host, "cat", "/proc/net/tcp", "/proc/net/tcp6").stdout

    def pair(self, *words, address="a"):
        """Runs a program as server in host a and as its client in host b; both must succeed."""
        port = 18515
        server = self.start("a", *words, "-p", str(port))
        wait_for(lambda: self.listens("a", port) or not server.running(), f"{words[0]} to listen")
        client = self.start("b", *words, "-p", str(port), address)
        status, other = client.wait(), server.wait(20)
        if status or other:
            self.fail(f"{words}: client {status}\n{client.output()}\nserver {other}\n{server.output()}")

    def gids(self, host):
        """Index of each GID by (address, type, VLAN)."""
        status = json.loads(self.execute(host, softrnic(), "status", "--json").stdout)
        return {(g["gid"], g["type"], g.get("vlan")): g["index"] for g in status["devices"][0]["gids"]}

    def processes(self):
        """Processes that know the lab's directory, or are a lab's own."""
        found = []
        for pid in filter(str.isdigit, os.listdir("/proc")):
            try:
                with open(f"/proc/{pid}/cmdline", "rb") as f:
                    line = f.read()
                if self.runtime.encode() in line and int(pid) != os.getpid():
                    found.append(line)
            except OSError:
                pass
        return found

    def assert_nothing_is_left(self, keepers=()):
        self.assertFalse(os.path.exists(self.runtime), list(os.walk(self.runtime)))
        wait_for(lambda: not self.processes(), "the lab's processes to be gone", timeout=20)
        for pid in keepers:
            self.assertFalse(alive(pid))


def alive(pid):
    try:
        with open(f"/proc/{pid}/stat") as f:
            return f.read().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


class Hosts(LabTest):
    """The example of two hosts."""

    def setUp(self):
        super().setUp()
        self.up("two-hosts.json")

    def test_from_up_to_down(self):
        self.assertNotEqual(os.geteuid(), 0)
        lab = self.labs()["two-hosts"]
        self.assertEqual(lab["state"], "up")
        self.assertEqual([(h["name"], h["nic"]["running"]) for h in lab["hosts"]], [("a", True), ("b", True)])
        shown = self.net("status").stdout
        for text in ("lab two-hosts  up", "NIC process runs", "eth0  in lan  10.0.0.101/24, fd00::101/64",
                     "roce0  10.0.0.1/24, fd00::1/64"):
            self.assertIn(text, shown)
        info = self.execute("a", "ibv_devinfo").stdout
        self.assertIn("roce0", info)
        self.assertIn("PORT_ACTIVE", info)
        for gid in (3, 5):  # IPv4, IPv6
            self.pair("ibv_rc_pingpong", "-c", "-n", "100", "-g", str(gid))
        self.pair("ib_write_bw", "-F", "-x", "3", "-n", "200")
        self.net("down")
        self.assert_nothing_is_left([lab["keeper"]])

    def test_hosts_are_stations_with_names(self):
        self.assertEqual(self.execute("a", "hostname").stdout, "a\n")
        for name in ("b", "b-roce0"):  # the other's kernel, and its NIC
            self.execute("a", "ping", "-4", "-c", "1", "-W", "5", name)
            self.execute("a", "ping", "-6", "-c", "1", "-W", "5", name)
        status = json.loads(self.execute("b", softrnic(), "status", "--json").stdout)
        neighbours = self.execute("a", "ip", "neigh", "show", "10.0.0.2").stdout
        self.assertIn(f"lladdr {status['ports'][0]['mac']}", neighbours)
        self.assertEqual(self.execute("a", "ls", "/sys/class/net").stdout.split(), ["eth0", "lo"])
        self.assertNotEqual(self.execute("a", "ping", "-c", "1", "-W", "1", "10.0.0.77", check=False).returncode, 0)

    def test_offloads_are_off(self):
        script = "import harness; print(harness.Offloads.on('eth0'))"
        done = self.net("exec", "a", "--", "env", f"PYTHONPATH={os.path.dirname(os.path.abspath(__file__))}",
                        "/usr/bin/python3", "-B", "-c", script)
        self.assertEqual(done.stdout, "[]\n")

    def test_exec_is_as_the_program_itself(self):
        self.assertEqual(self.execute("a", "sh", "-c", "exit 37", check=False).returncode, 37)
        self.assertEqual(self.execute("a", "sh", "-c", "kill -TERM $$", check=False).returncode, 128 + signal.SIGTERM)
        self.refused("exec", "a", "--", "no-such-program", says="no-such-program", status=127)
        self.refused("exec", "x", "--", "true", says="has no host 'x' (there is: a, b)", status=125)
        self.assertEqual(self.execute("a", "pwd").stdout.strip(), os.getcwd())
        self.assertEqual(self.execute("a", "echo", "--", "-x").stdout, "-- -x\n")
        script = "trap 'echo got it; exit 5' TERM; echo up; while :; do sleep 0.05; done"
        p = self.start("a", "sh", "-c", script)
        wait_for(lambda: "up" in p.output(), "the program to start")
        p.signal(signal.SIGTERM)
        self.assertEqual(p.wait(), 5)
        self.assertIn("got it", p.output())
        done = subprocess.run([softrnic(), "net", "exec", "a", "cat"], env=self.env, input="through\n", text=True,
                              capture_output=True, timeout=60)
        self.assertEqual(done.stdout, "through\n")

    def test_down_ends_what_runs_in_the_lab(self):
        gentle = self.start("a", "sleep", "1000")
        deaf = self.start("b", "sh", "-c", "trap '' TERM; echo up; while :; do sleep 0.05; done")
        wait_for(lambda: "up" in deaf.output(), "the program to start")
        self.net("down", "two-hosts")
        self.assertEqual(gentle.wait(), 128 + signal.SIGTERM)
        self.assertEqual(deaf.wait(), 128 + signal.SIGKILL)
        self.assert_nothing_is_left()

    def test_up_twice(self):
        self.refused("up", os.path.join(Build.labs, "two-hosts.json"), says="lab 'two-hosts' is up already")
        self.execute("a", "ibv_devinfo")

    def test_several_labs(self):
        self.up("two-hosts.json", "--name", "second")
        self.assertEqual(sorted(self.labs()), ["second", "two-hosts"])
        self.refused("exec", "a", "--", "true", says="several labs are up: say which (second, two-hosts)", status=125)
        self.refused("down", says="several labs are up")
        self.refused("down", "third", says="there is no lab 'third' (there is: second, two-hosts)")
        self.net("exec", "--lab", "second", "a", "--", "ping", "-c", "1", "b-roce0")
        self.net("down", "second")
        self.execute("a", "ping", "-c", "1", "b-roce0")
        self.net("down", "--all")
        self.assert_nothing_is_left()

    def test_killed_keeper(self):
        """Its death is the lab's; the next 'up' and 'down' find only files."""
        program = self.start("a", "sh", "-c", "echo up; exec sleep 1000")
        wait_for(lambda: "up" in program.output(), "the program to start")
        keeper = self.labs()["two-hosts"]["keeper"]
        os.kill(keeper, signal.SIGKILL)
        self.assertEqual(program.wait(), 128 + signal.SIGKILL)
        wait_for(lambda: not alive(keeper), "the keeper to be gone")
        self.assertEqual(self.labs()["two-hosts"]["state"], "dead")
        self.assertIn("lab two-hosts  has died", self.net("status").stdout)
        self.refused("exec", "a", "--", "true", says="lab 'two-hosts' has died", status=125)
        self.up("two-hosts.json")
        self.execute("a", "ibv_devinfo")
        os.kill(self.labs()["two-hosts"]["keeper"], signal.SIGKILL)
        self.net("down")
        self.assert_nothing_is_left()


class Examples(LabTest):
    def test_routed(self):
        self.up("routed.json")
        for gid in (3, 5):
            self.pair("ibv_rc_pingpong", "-c", "-n", "100", "-g", str(gid), "-m", "1024")
        self.pair("ib_read_bw", "-F", "-x", "3", "-n", "100", "-s", "10001")
        # Debian's ip copies a string onto itself, which a preloaded sanitizer does not allow.
        route = self.execute("a", "env", "-u", "LD_PRELOAD", "ip", "route", "get", "10.2.0.102").stdout
        self.assertIn("via 10.1.0.254", route)

    def test_vlan(self):
        self.up("vlan.json")
        gids = self.gids("a")
        for version in ("RoCE v1", "RoCE v2"):
            for address, vlan in (("::ffff:10.0.0.1", None), ("::ffff:10.7.0.1", 7)):
                index = {k: v for k, v in gids.items() if k[0] == address and k[1] == version and (k[2] or None) == vlan}
                self.assertEqual(len(index), 1, gids)
                self.pair("ibv_rc_pingpong", "-c", "-n", "100", "-g", str(*index.values()))
        # The VLAN's address does not answer outside of it.
        self.assertNotEqual(self.execute("b", "ping", "-c", "1", "-W", "1", "10.7.0.1", check=False).returncode, 0)


class Mistakes(LabTest):
    HOST = '"a": {"interfaces": [{"network": "lan", "ip": "10.0.0.1/24", "nic": {}}]}'

    def test_in_the_file(self):
        path = self.lab('{"networks": {"lan": {"mtu": 10}}, "hosts": {' + self.HOST + "}}")
        self.refused("up", path, says=f"{path}: networks.lan.mtu: an MTU is a number from 576 to 9216")
        self.refused("up", os.path.join(self.dir, "nothing.json"), says="cannot read")
        self.refused("up", os.path.join(Build.labs, "two-hosts.json"), "--name", "../x", says="cannot be the name of a lab")
        self.assert_nothing_is_left()

    def test_failure_half_way(self):
        """Hosts, links and a NIC process are there when the last host's turn comes: all of it goes."""
        twice = '"r": {"interfaces": [{"network": "lan", "ip": "10.0.0.2/24", "route": ["10.0.0.1", "10.0.0.3"]}]}'
        path = self.lab('{"networks": {"lan": {}}, "hosts": {' + self.HOST + "," + twice + "}}")
        self.refused("up", path, says="ip route add 0.0.0.0/0 via 10.0.0.3 dev eth0: RTNETLINK answers: File exists")
        self.assert_nothing_is_left()

    def test_nic_process_that_does_not_start(self):
        self.runtime = os.path.join(self.dir, 90 * "x")  # no socket can have such a path
        self.env["SOFTRNIC_DIR"] = self.runtime
        self.refused("up", os.path.join(Build.labs, "two-hosts.json"), says="the NIC process of host a: softrnicd: ")
        self.assert_nothing_is_left()

    def test_no_lab(self):
        self.refused("down", says="no lab is up")
        self.refused("exec", "a", "--", "true", says="no lab is up", status=125)
        self.assertEqual(self.net("status").stdout, "no lab is up\n")
        self.assertEqual(json.loads(self.net("status", "--json").stdout), {"labs": []})
        self.net("down", "--all")

    def test_where_namespaces_are_forbidden(self):
        """What an ordinary user sees where the setting says no."""
        script = "echo 0 > /proc/sys/user/max_user_namespaces && exec setpriv --bounding-set=-sys_admin \"$@\""
        done = subprocess.run(["unshare", "--user", "--map-root-user", "sh", "-c", script, "sh", softrnic(), "net", "up",
                               os.path.join(Build.labs, "two-hosts.json")], env=self.env, capture_output=True, text=True)
        self.assertEqual(done.returncode, 1, done.stdout + done.stderr)
        for text in ("this user cannot make namespaces here", "the setting user.max_user_namespaces is 0 and forbids it",
                     "sudo sysctl user.max_user_namespaces=", "sudo softrnic net up"):
            self.assertIn(text, done.stderr)
        self.assert_nothing_is_left()
