"""Captures: complete, correct by an independent decoder, and without effect on the traffic."""

import os
import signal
import subprocess
import threading

from harness import Build, CaptureTest, wait_for


class Capture(CaptureTest):
    RC = {0x00, 0x01, 0x02, 0x03, 0x04, 0x05, 0x06, 0x07, 0x08, 0x09, 0x0A, 0x0B, 0x0C, 0x0D, 0x0E, 0x0F, 0x10, 0x11, 0x12,
          0x13, 0x14}
    INVALIDATE = {0x16, 0x17}
    UC = {0x20 + i for i in range(0x0C)}
    UD = {0x64, 0x65}

    def test_every_opcode(self):
        capture = self.start_capture(self.file())
        out = self.case("all_opcodes")
        self.stop_capture(capture)
        seen = {int(x, 0) for x in self.packets(self.file())}
        wanted = self.RC | self.UC | self.UD | (set() if "left out" in out else self.INVALIDATE)
        self.assertEqual(wanted - seen, set(), "opcodes that are missing in the capture")
        self.judge(self.file())

    def test_two_processes(self):
        capture = self.start_capture(self.file())
        self.pair("ibv_rc_pingpong", "-c", "-g", "3", "-n", "100")
        self.stop_capture(capture)
        # 4096 bytes at MTU 1024: four packets a message, 100 messages each way.
        sends = [x for x in self.packets(self.file()) if int(x, 0) <= 4]
        self.assertGreaterEqual(len(sends), 2 * 100 * 4)
        self.judge(self.file())

    def test_ipv6(self):
        gids = [index for index, gid, kind in self.gids() if kind == "RoCE v2" and "ffff:" not in gid]
        if not gids:
            self.skipTest("no IPv6 GID here")
        capture = self.start_capture(self.file())
        self.pair("ibv_rc_pingpong", "-c", "-g", str(gids[0]), "-n", "50")
        self.stop_capture(capture)
        self.assertTrue(self.packets(self.file(), "ipv6 && infiniband"))
        self.judge(self.file())

    def test_of_one_program(self):
        self.nic.command("run", "--capture", self.file(), "--", self.prog("verbs_cases"), "inline_data")
        self.assertTrue(self.packets(self.file()))
        self.judge(self.file())

    def test_to_a_pipe(self):
        """Live: packets come out while the capture runs."""
        argv = [os.path.join(Build.bin, "softrnic"), "capture", "-w", "-"]
        capture = subprocess.Popen(argv, env=self.nic.control_env, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL,
                                   stdin=subprocess.DEVNULL)
        received = bytearray()

        def drain():
            while data := capture.stdout.read1():
                received.extend(data)

        reader = threading.Thread(target=drain)
        reader.start()
        wait_for(lambda: received, "the header of the capture")
        self.case("inline_data")
        wait_for(lambda: len(received) > 100 * 512, "the packets in the pipe")
        capture.send_signal(signal.SIGINT)
        self.assertEqual(capture.wait(60), 0)
        reader.join()
        capture.stdout.close()
        with open(self.file(), "wb") as f:
            f.write(received)
        self.assertTrue(self.packets(self.file()))
        self.judge(self.file())

    def test_names_interfaces(self):
        capture = self.start_capture(self.file())
        self.case("inline_data")
        self.stop_capture(capture)
        done = subprocess.run(["tshark", "-r", self.file(), "-c", "1", "-T", "fields", "-e", "frame.interface_name"],
                              capture_output=True, text=True, timeout=60)
        self.assertTrue(done.stdout.strip(), done.stderr)

    def test_filter(self):
        capture = self.start_capture(self.file(), "--filter", "udp port 4791 and udp[8] = 17")  # acknowledgements
        self.pair("ibv_rc_pingpong", "-c", "-g", "3", "-n", "50")
        self.stop_capture(capture)
        self.assertEqual(set(self.packets(self.file(), "frame")), {"17"})
        done = self.nic.command("capture", "-w", self.file("wrong"), "--filter", "udp prot 4791", check=False)
        self.assertEqual(done.returncode, 1)
        self.assertIn("the filter is wrong", done.stderr)

    def test_switched_on_and_off_under_load(self):
        traffic = self.nic.start([self.prog("verbs_cases"), "numbered_traffic"], stdin=subprocess.PIPE)
        wait_for(lambda: "ready" in traffic.output() or not traffic.running(), "the traffic to start")
        for i in range(20):
            path = self.file(f"{i}.pcapng")
            capture = self.start_capture(path)
            # Wait for packets of this capture before it is switched off again.
            wait_for(lambda: os.path.getsize(path) > 20000 or not traffic.running(), "packets in the capture")
            self.stop_capture(capture)
            self.assertTrue(traffic.running(), traffic.output())
            if i < 19:
                os.unlink(path)
        traffic.child.stdin.close()
        traffic.child.stdin = None
        self.assertEqual(traffic.wait(), 0, traffic.output())
        self.assertTrue(self.packets(self.file("19.pcapng")))

    def test_killed_capture_stops_capturing(self):
        traffic = self.nic.start([self.prog("verbs_cases"), "numbered_traffic"], stdin=subprocess.PIPE)
        wait_for(lambda: "ready" in traffic.output() or not traffic.running(), "the traffic to start")
        for i in range(3):
            capture = self.start_capture(self.file(f"killed{i}.pcapng"))
            capture.kill()
        traffic.child.stdin.close()
        traffic.child.stdin = None
        self.assertEqual(traffic.wait(), 0, traffic.output())

    def test_two_captures_at_once(self):
        a, b = self.start_capture(self.file("a")), self.start_capture(self.file("b"))
        self.pair("ibv_ud_pingpong", "-c", "-g", "3", "-n", "50")
        self.stop_capture(a)
        self.pair("ibv_uc_pingpong", "-c", "-g", "3", "-n", "50")
        self.stop_capture(b)
        self.assertGreater(len(self.packets(self.file("b"))), len(self.packets(self.file("a"))))
