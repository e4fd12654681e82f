"""Bad use gets a clear message on stderr and a non-zero exit."""

import os
import shutil
import signal
import socket
import struct
import subprocess
import threading

from harness import AppTest, Nic, base_env, softrnic, wait_for


class NoDaemon(AppTest):
    def setUp(self):
        self.nic = Nic(self, start=False)

    def test_a_program_without_a_nic_process_is_told_why(self):
        p = self.nic.start(["ibv_devinfo"])
        self.assertNotEqual(p.wait(), 0)
        self.assertIn("softrnic", p.output())
        # Once: not a line for each call.
        self.assertEqual(len([line for line in p.output().splitlines() if "softrnic:" in line]), 1, p.output())

    def test_commands_without_a_nic_process(self):
        for args in (("status",), ("status", "--json"), ("capture", "-w", "/dev/null"), ("down",)):
            with self.subTest(args=args):
                done = self.nic.command(*args, check=False)
                self.assertNotEqual(done.returncode, 0)
                self.assertIn("softrnic", done.stderr)
                self.assertEqual(done.stdout, "")

    def test_stale_socket(self):
        os.makedirs(self.nic.dir, exist_ok=True)
        path = os.path.join(self.nic.dir, "control.sock")
        with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as s:
            s.bind(path)
        self.assertTrue(os.path.exists(path))
        p = self.nic.start(["ibv_devinfo"])
        self.assertNotEqual(p.wait(), 0)
        self.assertIn("softrnic", p.output())
        self.assertNotEqual(self.nic.command("status", check=False).returncode, 0)
        # Starting a NIC process clears it away.
        self.nic.up()
        self.assertIn("roce0", self.run_program("ibv_devices"))

    def test_directory_that_cannot_be_used(self):
        blocked = os.path.join(self.nic.dir, "blocked")
        os.mkdir(blocked, 0o500)
        env = dict(self.nic.control_env, SOFTRNIC_DIR=blocked)
        done = subprocess.run([softrnic(), "up"], env=env, capture_output=True, text=True, timeout=60)
        self.assertNotEqual(done.returncode, 0)
        self.assertIn("blocked", done.stderr)

    def test_version_mismatch(self):
        os.makedirs(self.nic.dir, exist_ok=True)
        path = os.path.join(self.nic.dir, "control.sock")
        server = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self.addCleanup(server.close)
        server.bind(path)
        server.listen(4)
        server.settimeout(60)

        def answer():
            c, _ = server.accept()
            with c:
                request = c.recv(65536)
                kind, _, seq, _, _ = struct.unpack_from("<HHIiI", request)
                body = struct.pack("<IIII32s256s", 999, 0, 0, os.getpid(), b"99.9.9", b"")
                c.send(struct.pack("<HHIiI", kind, 0, seq, 93, len(body)) + body)  # 93: EPROTONOSUPPORT
                c.recv(1)

        thread = threading.Thread(target=answer)
        thread.start()
        p = self.nic.start(["ibv_devinfo"])
        self.assertNotEqual(p.wait(), 0)
        thread.join()
        self.assertIn("version", p.output())
        self.assertIn("999", p.output())

    def test_garbage_from_the_server(self):
        path = os.path.join(self.nic.dir, "control.sock")
        server = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self.addCleanup(server.close)
        server.bind(path)
        server.listen(4)
        server.settimeout(60)

        def answer():
            c, _ = server.accept()
            with c:
                c.recv(65536)
                c.send(b"\xff" * 100)

        thread = threading.Thread(target=answer)
        thread.start()
        p = self.nic.start(["ibv_devinfo"])
        self.assertNotEqual(p.wait(), 0)
        self.assertGreaterEqual(p.child.returncode, 0, p.output())  # not killed by a signal
        thread.join()


class Misuse(AppTest):
    def test_usage_errors(self):
        for args in ((), ("nonsense",), ("run",), ("capture",), ("status", "--nonsense"), ("run", "--nonsense", "--", "true")):
            with self.subTest(args=args):
                done = self.nic.command(*args, check=False)
                self.assertNotEqual(done.returncode, 0)
                self.assertTrue(done.stderr)

    def test_help(self):
        for args in (("--help",), *((c, "--help") for c in ("run", "up", "down", "status", "capture", "env"))):
            with self.subTest(args=args):
                self.assertGreater(len(self.nic.command(*args).stdout), 100)
        self.assertRegex(self.nic.command("--version").stdout, r"\d+\.\d+\.\d+")

    def test_second_daemon_in_the_same_directory(self):
        daemon = os.path.join(os.path.dirname(softrnic()), "softrnicd")
        p = self.nic.start([daemon], env={"SOFTRNIC_DIR": self.nic.dir})
        self.assertNotEqual(p.wait(60), 0)
        self.assertRegex(p.output(), "(?i)already|in use|running")
        # The first one is as well as before.
        self.assertIn("roce0", self.run_program("ibv_devices"))

    def test_unknown_device(self):
        for argv in (["ibv_devinfo", "-d", "nosuch"], ["ib_write_bw", "-d", "nosuch"]):
            with self.subTest(argv=argv):
                p = self.nic.start(argv)
                self.assertNotEqual(p.wait(), 0)
                self.assertIn("nosuch", p.output())

    def test_capture_file_that_cannot_be_made(self):
        done = self.nic.command("capture", "-w", "/no/such/directory/file.pcapng", check=False)
        self.assertNotEqual(done.returncode, 0)
        self.assertIn("/no/such/directory/file.pcapng", done.stderr)

    def test_full_file_system_while_capturing(self):
        done = subprocess.run([softrnic(), "capture", "-w", "/dev/full"], env=self.nic.control_env, capture_output=True,
                              text=True, stdin=subprocess.DEVNULL, timeout=60)
        self.assertNotEqual(done.returncode, 0)
        self.assertRegex(done.stderr, "(?i)no space|full")
        self.pair("ibv_rc_pingpong", "-c", "-g", "3")

    def test_file_system_that_fills_up_while_capturing(self):
        if not shutil.which("unshare") or subprocess.run(["unshare", "-Urm", "true"], capture_output=True).returncode != 0:
            self.skipTest("no user namespaces here")
        small = os.path.join(self.nic.dir, "small")
        os.mkdir(small)
        script = f"mount -t tmpfs -o size=256k none {small} && exec {softrnic()} capture -w {small}/c.pcapng"
        traffic = self.nic.start([self.prog("verbs_cases"), "numbered_traffic"], stdin=subprocess.PIPE)
        wait_for(lambda: "ready" in traffic.output() or not traffic.running(), "the traffic to start")
        capture = self.nic.start(["unshare", "-Urm", "sh", "-c", script])
        self.assertNotEqual(capture.wait(), 0, capture.output())
        self.assertRegex(capture.output(), "(?i)no space|full")
        traffic.child.stdin.close()
        traffic.child.stdin = None
        self.assertEqual(traffic.wait(), 0, traffic.output())

    def test_broken_pipe_while_capturing(self):
        capture = subprocess.Popen([softrnic(), "capture", "-w", "-"], env=self.nic.control_env, stdin=subprocess.DEVNULL,
                                   stdout=subprocess.PIPE, stderr=subprocess.PIPE)
        capture.stdout.read(4)
        capture.stdout.close()
        self.pair("ibv_rc_pingpong", "-c", "-g", "3")
        self.assertNotEqual(capture.wait(60), None)
        capture.stderr.close()

    def test_run_with_a_socket_that_is_not_there(self):
        env = dict(base_env(), SOFTRNIC_DIR=self.nic.dir, SOFTRNIC_SOCKET="/no/such/socket",
                   LD_LIBRARY_PATH=self.nic.env["LD_LIBRARY_PATH"])
        done = subprocess.run(["ibv_devinfo"], env=env, capture_output=True, text=True, timeout=60)
        self.assertNotEqual(done.returncode, 0)
        self.assertIn("/no/such/socket", done.stderr)

    def test_interrupted_run_leaves_nothing(self):
        nic = Nic(self, start=False)
        p = nic.start([softrnic(), "run", "--", "sleep", "600"])
        wait_for(lambda: os.path.exists(os.path.join(nic.dir, "control.sock")) or not p.running(), "the NIC process")
        p.signal(signal.SIGINT)
        self.assertNotEqual(p.wait(), 0)
        wait_for(lambda: not os.path.exists(os.path.join(nic.dir, "control.sock")), "the NIC process to end")
