"""Programs that set up their connections with rdma_cm, by the stock librdmacm."""

import re
import signal
import subprocess
import time

from harness import AppTest, CaptureTest, free_port, listening, wait_for


class CmTest(AppTest):
    ADDRESS = "127.0.0.1"

    def serve(self, argv, port):
        """Starts a server and waits until it listens: rdma_cm's ports are in no table of the system."""
        server = self.nic.start(argv)
        wait_for(lambda: self.listens(port) or not server.running(), f"{argv[0]} to listen")
        self.assertTrue(server.running(), server.output())
        return server

    def listens(self, port):
        return any(entry["port"] == int(port) for entry in self.nic.status()["rdma_cm"]["listeners"])

    def cm_pair(self, server_argv, client_argv, port):
        """Both must succeed. Returns (server output, client output)."""
        server = self.serve(server_argv, port)
        client = self.nic.start(client_argv)
        client_status = client.wait()
        if client_status != 0:
            server.kill()
        self.assertEqual((client_status, server.wait()), (0, 0),
                         f"client:\n{client.output()}\nserver:\n{server.output()}")
        return server.output(), client.output()


class Rping(CmTest):
    def rping(self, *args, address=None):
        address = address or self.ADDRESS
        port = str(free_port())
        common = ["-a", address, "-p", port, "-v", "-V"]
        return self.cm_pair(["rping", "-s", *common, *args], ["rping", "-c", *common, *args], port)

    def test_ping(self):
        _, out = self.rping("-C", "10")
        self.assertEqual(len(re.findall(r"ping data: rdma-ping", out)), 10)

    def test_sizes(self):
        for size in ("64", "1024", "4096", "65535"):
            with self.subTest(size=size):
                self.rping("-C", "5", "-S", size)

    def test_ipv6_loopback(self):
        with open("/proc/net/if_inet6") as f:
            if "00000000000000000000000000000001" not in f.read():
                self.skipTest("no ::1 here")
        self.rping("-C", "5", address="::1")

    def test_persistent_server(self):
        port = str(free_port())
        server = self.serve(["rping", "-s", "-P", "-a", self.ADDRESS, "-p", port, "-v"], port)
        for _ in range(5):
            client = self.nic.start(["rping", "-c", "-a", self.ADDRESS, "-p", port, "-C", "3", "-V"])
            self.assertEqual(client.wait(), 0, client.output() + server.output())
        self.assertTrue(server.running(), server.output())

    def test_any_address(self):
        port = str(free_port())
        self.cm_pair(["rping", "-s", "-p", port, "-C", "3"],
                     ["rping", "-c", "-a", self.ADDRESS, "-p", port, "-C", "3", "-V"], port)

    def test_killed_peer_disconnects_at_once(self):
        port = str(free_port())
        server = self.serve(["rping", "-s", "-a", self.ADDRESS, "-p", port, "-d"], port)
        client = self.nic.start(["stdbuf", "-oL", "rping", "-c", "-a", self.ADDRESS, "-p", port, "-d"])
        wait_for(lambda: "ESTABLISHED" in client.output() or not client.running(), "the connection")
        self.assertTrue(client.running(), client.output())
        client.signal(signal.SIGKILL)
        begin = time.monotonic()
        server.wait(10)
        self.assertLess(time.monotonic() - begin, 5)
        self.assertIn("DISCONNECT", server.output())

    def test_end_of_the_nic_process_is_a_device_removal(self):
        port = str(free_port())
        server = self.serve(["rping", "-s", "-a", self.ADDRESS, "-p", port, "-d"], port)
        self.nic.command("down")
        self.assertNotEqual(server.wait(20), None)
        self.assertIn("device removal", server.output())

    def test_nobody_listens(self):
        p = self.nic.start(["rping", "-c", "-a", self.ADDRESS, "-p", str(free_port()), "-C", "1", "-d"])
        self.assertNotEqual(p.wait(), 0)
        self.assertRegex(p.output(), r"RDMA_CM_EVENT_REJECTED, error 8")  # invalid service ID

    def test_no_way(self):
        p = self.nic.start(["rping", "-c", "-a", "192.0.2.1", "-p", str(free_port()), "-C", "1"])
        self.assertNotEqual(p.wait(), 0)
        self.assertIn("Network is unreachable", p.output())


class Examples(CmTest):
    """rdma-core's other examples."""

    def test_ucmatose(self):
        for args in ((), ("-c", "20"), ("-S", "1000", "-C", "50"), ("-c", "4", "-m")):
            with self.subTest(args=args):
                port = str(free_port())
                _, out = self.cm_pair(["ucmatose", "-p", port, *args],
                                      ["ucmatose", "-s", self.ADDRESS, "-p", port, *args], port)
                self.assertIn("return status 0", out)

    def test_ucmatose_migrates_ids(self):
        for args in (("-m",), ("-c", "8", "-m")):
            port = str(free_port())
            self.cm_pair(["ucmatose", "-p", port, *args], ["ucmatose", "-s", self.ADDRESS, "-p", port, *args], port)

    def test_udaddy(self):
        """It has a port of its own, hence one run at a time."""
        for args in ((), ("-c", "8"), ("-C", "30", "-S", "500")):
            with self.subTest(args=args):
                _, out = self.cm_pair(["udaddy", *args], ["udaddy", "-s", self.ADDRESS, *args], 7174)
                self.assertIn("return status 0", out)

    def test_mckey(self):
        """A sender and a receiver of a group."""
        receiver = self.nic.start(["stdbuf", "-oL", "mckey", "-m", "239.7.7.7", "-b", self.ADDRESS, "-C", "20"])
        wait_for(lambda: "joined dgid" in receiver.output() or not receiver.running(), "the receiver to join")
        for _ in range(100):
            sender = self.nic.start(["mckey", "-m", "239.7.7.7", "-b", self.ADDRESS, "-s", "-C", "20"])
            self.assertEqual(sender.wait(), 0, sender.output())
            if not receiver.running():
                break
            time.sleep(0.05)
        self.assertEqual(receiver.wait(), 0, receiver.output())

    def test_cmtime(self):
        port = str(free_port())
        server = self.serve(["cmtime", "-p", port, "-c", "100"], port)  # never ends by itself
        client = self.nic.start(["cmtime", "-s", self.ADDRESS, "-p", port, "-c", "100"])
        self.assertEqual(client.wait(), 0, client.output())
        self.assertRegex(client.output(), r"disconnect +: +\d")
        server.kill()

    def test_rdma_client_and_server(self):
        port = str(free_port())
        self.cm_pair(["rdma_server", "-p", port], ["rdma_client", "-s", self.ADDRESS, "-p", port], port)

    def test_rdma_xclient_and_xserver(self):
        port = str(free_port())
        self.cm_pair(["rdma_xserver", "-p", port, "-c", "r"], ["rdma_xclient", "-s", self.ADDRESS, "-p", port, "-c", "r"],
                     port)


class Rsockets(CmTest):
    def test_rstream(self):
        for args in ((), ("-S", "65536", "-C", "200"), ("-T", "b"), ("-T", "n"), ("-T", "v"), ("-T", "r")):
            with self.subTest(args=args):
                port = str(free_port())
                self.cm_pair(["rstream", "-p", port, *args], ["rstream", "-s", self.ADDRESS, "-p", port, *args],
                             port)

    def test_riostream(self):
        port = str(free_port())
        for args in (("-S", "64", "-C", "50"), ("-S", "65536", "-C", "20")):
            with self.subTest(args=args):
                self.cm_pair(["riostream", "-p", port, *args], ["riostream", "-s", self.ADDRESS, "-p", port, *args], port)


class PerftestCm(CmTest):
    """perftest -R: the connection of the test itself by rdma_cm."""

    def perf(self, program, *args):
        """perftest connects twice, and its server listens anew for the second time: a client that is faster is refused
        (and crashes)."""
        with self.subTest(program=program, args=args):
            for _ in range(10):
                port = str(free_port())
                argv = [program, "-F", "-R", "-n", "500", "-p", port, *args]
                server = self.serve(argv, port)
                client = self.nic.start([*argv, self.ADDRESS])
                status, out = client.wait(), client.output()
                if status == 0 or "REJECTED; error: 8" not in out:
                    break
                server.kill()
            self.assertEqual((status, server.wait()), (0, 0), f"client:\n{out}\nserver:\n{server.output()}")
            self.assertRegex(out, r"(?m)^ *\d+ +\d+ +\d+\.\d+")

    def test_programs(self):
        for program in ("ib_send_bw", "ib_write_lat", "ib_read_bw", "ib_atomic_lat", "ib_send_lat", "ib_write_bw"):
            self.perf(program)

    def test_unreliable_datagrams(self):
        self.perf("ib_send_bw", "-c", "UD")

    def test_queue_pairs(self):
        self.perf("ib_send_bw", "-q", "8")


class Qperf(CmTest):
    """qperf with rdma_cm; its own exchange knows only LIDs, hence no RoCE."""

    def setUp(self):
        super().setUp()
        self.port = str(free_port())
        self.server = self.nic.start(["qperf", "-lp", self.port])
        wait_for(lambda: listening(int(self.port)) or not self.server.running(), "qperf to listen")

    def qperf(self, *args):
        out = self.run_program("qperf", self.ADDRESS, "-lp", self.port, "-t", "1", *args)
        self.assertNotIn("failed", out)
        return out

    def test_rdma_cm(self):
        for test in ("rc_bw", "rc_lat", "rc_rdma_write_bw"):
            with self.subTest(test=test):
                self.assertRegex(self.qperf("-cm", "1", test), test + r":\n +(bw|latency) +=")


class Captured(CmTest, CaptureTest):
    def test_messages_are_packets(self):
        """The connection's messages, as a Wireshark user sees them."""
        path = self.file()
        capture = self.start_capture(path)
        port = str(free_port())
        self.cm_pair(["rping", "-s", "-a", self.ADDRESS, "-p", port, "-C", "2"],
                     ["rping", "-c", "-a", self.ADDRESS, "-p", port, "-C", "2"], port)
        self.stop_capture(capture)
        attributes = self.fields(path, "infiniband.mad.mgmtclass == 0x07", "infiniband.mad.attributeid")
        numbers = [int(a, 16) for a in attributes]
        for attribute in (0x10, 0x13, 0x14, 0x15, 0x16):  # REQ, REP, RTU, DREQ, DREP
            self.assertIn(attribute, numbers)
        self.judge(path)

    def fields(self, path, display_filter, field):
        done = subprocess.run(["tshark", "-r", path, "-Y", display_filter, "-T", "fields", "-e", field],
                              capture_output=True, text=True, timeout=600)
        self.assertEqual(done.returncode, 0, done.stderr)
        return done.stdout.split()
