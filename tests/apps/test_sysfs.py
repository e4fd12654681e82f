"""The sysfs tree, as cat, ls, shells, libraries and other programs read it."""

import os
import re
import subprocess
import time

from harness import AppTest, Build, softrnic

CLASS = "/sys/class/infiniband"
PORT = CLASS + "/roce0/ports/1"


class Tree(AppTest):
    def sh(self, script, expect=0):
        return self.run_program("sh", "-c", script, expect=expect)

    def cat(self, path):
        return self.run_program("cat", path).rstrip("\n")

    def test_device(self):
        self.assertEqual(self.cat(CLASS + "/roce0/node_type"), "1: CA")
        out = self.run_program("ibv_devinfo", "-v")
        for file, field in (("node_guid", "node_guid"), ("sys_image_guid", "sys_image_guid"), ("fw_ver", "fw_ver")):
            self.assertEqual(self.cat(f"{CLASS}/roce0/{file}"), re.search(field + r":\s+(\S+)", out).group(1))
        for name in ("node_desc", "hca_type", "board_id", "hw_rev"):
            self.assertTrue(self.cat(f"{CLASS}/roce0/{name}"))

    def test_port(self):
        for name, text in (("state", "4: ACTIVE"), ("phys_state", "5: LinkUp"), ("link_layer", "Ethernet"),
                           ("rate", "100 Gb/sec (4X EDR)"), ("lid", "0x0"), ("sm_lid", "0x0"), ("sm_sl", "0"),
                           ("lid_mask_count", "0"), ("cap_mask", "0x04010000"), ("pkeys/0", "0xffff")):
            with self.subTest(file=name):
                self.assertEqual(self.cat(f"{PORT}/{name}"), text)

    def test_gids_are_those_of_verbs(self):
        names = {"RoCE v2": "RoCE v2", "RoCE v1": "IB/RoCE v1", "IB/RoCE v1": "IB/RoCE v1"}
        table = self.gids()
        self.assertTrue(table)
        indices = self.run_program("ls", PORT + "/gids").split()
        self.assertEqual(sorted(map(int, indices)), [i for i, _, _ in table])
        for index, _, kind in table:
            self.assertRegex(self.cat(f"{PORT}/gids/{index}"), r"^([0-9a-f]{4}:){7}[0-9a-f]{4}$")
            self.assertEqual(self.cat(f"{PORT}/gid_attrs/types/{index}"), names[kind])
            ndev = self.cat(f"{PORT}/gid_attrs/ndevs/{index}")
            self.assertTrue(os.path.isdir("/sys/class/net/" + ndev), ndev)

    def test_abi_versions_and_nodes(self):
        self.assertEqual(self.cat("/sys/class/infiniband_verbs/abi_version"), "6")
        self.assertEqual(self.cat("/sys/class/infiniband_verbs/uverbs0/ibdev"), "roce0")
        self.assertEqual(self.cat("/sys/class/infiniband_verbs/uverbs0/abi_version"), "1")
        self.assertEqual(self.cat("/sys/class/infiniband_verbs/uverbs0/dev"), "231:192")
        self.assertEqual(self.cat("/sys/class/infiniband_mad/abi_version"), "5")
        self.assertEqual(self.cat("/sys/class/infiniband_mad/umad0/ibdev"), "roce0")
        self.assertEqual(self.cat("/sys/class/misc/rdma_cm/abi_version"), "4")
        self.sh("test -c /dev/infiniband/rdma_cm && : <>/dev/infiniband/rdma_cm")
        # An accessible character device.
        self.sh("test -c /dev/infiniband/uverbs0 && test -r /dev/infiniband/uverbs0 && test -w /dev/infiniband/uverbs0")
        self.assertIn("uverbs0", self.run_program("ls", "/dev/infiniband"))

    def test_shell(self):
        """Globbing, tests, cd, redirections, find."""
        for shell in ("sh", "bash"):
            out = self.run_program(shell, "-c", "for f in /sys/class/infiniband/*/ports/*/state; do "
                                                "echo $f; read line <$f; echo \"$line\"; done")
            self.assertEqual(out, PORT + "/state\n4: ACTIVE\n")
            self.run_program(shell, "-c", f"cd {CLASS}/roce0 && test -f ports/1/rate && test ! -e ports/2 && cat fw_ver")
        self.assertIn("gid_attrs", self.run_program("ls", "-l", PORT))
        self.assertIn(PORT + "/hw_counters/sent_pkts", self.run_program("find", "-L", CLASS + "/roce0/ports"))
        self.assertIn("RoCE v2", self.run_program("grep", "-r", "RoCE", PORT + "/gid_attrs"))
        self.sh(f"test ! -e {CLASS}/roce7")
        self.sh(f"cat {CLASS}/roce0/no_such_file", expect=1)

    def test_device_behind_it(self):
        real = self.run_program("realpath", CLASS + "/roce0/device").strip()
        self.assertEqual(real, "/sys/devices/softrnic/roce0")
        self.assertEqual(self.cat(real + "/numa_node"), "-1")
        ndevs = self.run_program("ls", CLASS + "/roce0/device/net").split()
        self.assertEqual(len(ndevs), 1)
        self.assertEqual(ndevs[0], self.cat(f"{PORT}/gid_attrs/ndevs/0"))
        self.assertTrue(self.cat(f"{CLASS}/roce0/device/net/{ndevs[0]}/address"))
        self.assertEqual(self.run_program("ls", real + "/infiniband").split(), ["roce0"])

    def test_python(self):
        script = ("import os, glob\n"
                  f"assert os.listdir('{CLASS}') == ['roce0']\n"
                  f"assert glob.glob('{CLASS}/*/ports/*') == ['{PORT}']\n"
                  f"assert os.path.isdir('{PORT}') and not os.path.exists('{CLASS}/roce1')\n"
                  f"assert open('{PORT}/state').read() == '4: ACTIVE\\n'\n"
                  f"assert os.path.realpath('{CLASS}/roce0/device').endswith('roce0')\n")
        self.run_program("/usr/bin/python3", "-c", script)

    def counters(self):
        names = ("port_xmit_packets", "port_rcv_packets", "port_xmit_data", "port_rcv_data")
        text = self.run_program("cat", *(f"{PORT}/counters/{n}" for n in names))
        return dict(zip(names, map(int, text.split())))

    def test_counters_count(self):
        before = self.counters()
        self.pair("ibv_rc_pingpong", "-g", "3", "-s", "4096", "-n", "1000")
        after = self.counters()
        for name in ("port_xmit_packets", "port_rcv_packets"):
            self.assertGreaterEqual(after[name] - before[name], 4000)  # data and acknowledgements, both sides
        for name in ("port_xmit_data", "port_rcv_data"):
            self.assertGreaterEqual(after[name] - before[name], 2 * 1000 * 1024)
        self.assertEqual(self.counters(), after)
        hw = self.run_program("cat", PORT + "/hw_counters/sent_pkts")
        self.assertEqual(int(hw), after["port_xmit_packets"])

    def test_tree_goes_with_the_nic_process(self):
        tree = os.path.join(self.nic.dir, "sys")
        self.assertTrue(os.path.isdir(tree))
        self.nic.command("down")
        self.assertFalse(os.path.exists(tree))
        self.run_program("ls", CLASS, expect=2)

    def test_nothing_else_is_touched(self):
        for path in ("/sys/class/net", "/dev/null", "/etc/hostname", "/sys/class/misc", "/dev/infiniband_not_ours"):
            plain = subprocess.run(["ls", "-ld", path], capture_output=True, text=True, env={"LC_ALL": "C"})
            ours = self.nic.start(["ls", "-ld", path])
            self.assertEqual(ours.wait(), plain.returncode)
            self.assertEqual(ours.output(), plain.stdout + plain.stderr)


class Programs(AppTest):
    def test_ucx_info_lists_the_device(self):
        out = self.run_program("ucx_info", "-d")
        self.assertRegex(out, r"Transport: rc_verbs\n#\s+Device: roce0:1")
        self.assertRegex(out, r"Transport: ud_verbs\n#\s+Device: roce0:1")

    def test_through_run_and_env(self):
        for command in (["run", "--"], ["run", "--private", "--"]):
            out = self.nic.command(*command, "cat", PORT + "/state").stdout
            self.assertEqual(out, "4: ACTIVE\n")
        script = f'eval "$({softrnic()} env)" && cat {PORT}/state'
        done = subprocess.run(["sh", "-c", script], env=self.nic.control_env, capture_output=True, text=True)
        self.assertEqual(done.stdout, "4: ACTIVE\n", done.stderr)


class Cost(AppTest):
    def test_passing_through_is_cheap(self):
        """Opening, examining and closing a file many times, with and without the library."""
        program = os.path.join(Build.progs, "file_calls")
        preload = self.nic.env["LD_PRELOAD"].split(":")[-1]
        def seconds(env):
            return float(subprocess.run([program, "200000"], env=env, capture_output=True, text=True,
                                        check=True).stdout)
        ratios = []
        for _ in range(15):
            plain = seconds({"LC_ALL": "C"})
            ratios.append(seconds({"LC_ALL": "C", "LD_PRELOAD": preload}) / plain)
        ratios.sort()
        print(f"file calls with the preload library: {(ratios[len(ratios) // 2] - 1) * 100:+.2f} % (median of 15)")
        # The machine's own noise is larger than what is measured; a translation gone slow would be far above this.
        self.assertLess(ratios[len(ratios) // 4], 1.10)
