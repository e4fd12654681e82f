"""The extcap program: what Wireshark and tshark ask it, and a capture through it."""

import os
import subprocess

from harness import AppTest, Build, TIMEOUT, wait_for


class Extcap(AppTest):
    def setUp(self):
        super().setUp()
        self.directory = os.path.join(Build.share, "softrnic", "extcap")
        self.program = os.path.join(self.directory, "softrnic-extcap")
        self.nic.env["WIRESHARK_EXTCAP_DIR"] = self.directory

    def ask(self, *args, expect=0):
        done = subprocess.run([self.program, *args], env=self.nic.control_env, capture_output=True, text=True,
                              timeout=TIMEOUT)
        self.assertEqual(done.returncode, expect, done.stderr)
        return done.stdout

    def test_answers(self):
        self.assertIn("interface {value=softrnic}", self.ask("--extcap-interfaces", "--extcap-version=4.0"))
        self.assertIn("dlt {number=1}{name=EN10MB}", self.ask("--extcap-dlts", "--extcap-interface", "softrnic"))
        self.assertIn("{call=--dir}", self.ask("--extcap-config", "--extcap-interface", "softrnic"))
        self.assertEqual(self.ask("--extcap-interface", "softrnic", "--extcap-capture-filter", "udp"), "")
        self.assertIn("syntax error", self.ask("--extcap-interface", "softrnic", "--extcap-capture-filter",
                      "udp prot 1"))
        self.ask("--extcap-dlts", "--extcap-interface", "eth0", expect=1)

    def test_through_a_link(self):
        link = os.path.join(self.nic.dir, "link")
        os.symlink(self.program, link)
        self.program = link
        self.assertIn("interface {value=softrnic}", self.ask("--extcap-interfaces"))

    def test_tshark_lists_the_interface(self):
        self.assertRegex(self.run_program("tshark", "-D"), r"softrnic \(softrnic, the software RDMA NIC\)")

    def test_tshark_captures(self):
        path = os.path.join(self.nic.dir, "live.pcapng")
        tshark = self.nic.start(["tshark", "-i", "softrnic", "-f", "udp port 4791", "-w", path, "-a", "packets:200"])
        # What is sent before the capture runs is not in it.
        wait_for(lambda: self.nic.status()["route"] == "switch" or not tshark.running(), "the capture to start")
        while tshark.running():
            self.pair("ibv_rc_pingpong", "-c", "-g", "3", "-n", "100")
        self.assertEqual(tshark.wait(), 0, tshark.output())
        done = subprocess.run(["tshark", "-r", path, "-Y", "infiniband"], capture_output=True, text=True,
                              timeout=TIMEOUT)
        self.assertEqual(len(done.stdout.splitlines()), 200, done.stderr)
        wait_for(lambda: self.nic.status()["route"] == "direct", "the capture to end")

    def test_without_a_nic_process(self):
        self.nic.command("down")
        done = subprocess.run([self.program, "--capture", "--extcap-interface", "softrnic", "--fifo", "/dev/null"],
                              env=self.nic.control_env, capture_output=True, text=True, timeout=TIMEOUT)
        self.assertEqual(done.returncode, 1)
        self.assertIn("no NIC process is running", done.stderr)
