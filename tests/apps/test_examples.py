"""rdma-core's example programs: ibv_devinfo and the ping-pongs."""

import re

from harness import AppTest


class Devinfo(AppTest):
    def test_lists_the_device_with_true_values(self):
        out = self.run_program("ibv_devinfo", "-v")
        self.assertRegex(out, r"hca_id:\s+roce0")
        self.assertRegex(out, r"state:\s+PORT_ACTIVE")
        self.assertRegex(out, r"link_layer:\s+Ethernet")
        self.assertNotRegex(out, r"sys_image_guid:\s+0000:0000:0000:0000")
        self.assertNotRegex(out, r"node_guid:\s+0000:0000:0000:0000")
        self.assertNotRegex(out, r"vendor_id:\s+0x(0000|ffffff)\b")
        self.assertRegex(out, r"active_mtu:\s+4096 \(5\)")

    def test_lists_only_usable_gids(self):
        out = self.run_program("ibv_devinfo", "-v")
        gids = re.findall(r"GID\[\s*(\d+)\]:\s*(\S+)", out)
        self.assertTrue(gids)
        self.assertEqual([int(i) for i, _ in gids], list(range(len(gids))))
        for _, gid in gids:
            self.assertNotRegex(gid, r"^(0000:){7}0000")

    def test_through_softrnic_run(self):
        out = self.nic.command("run", "--", "ibv_devinfo").stdout
        self.assertIn("roce0", out)

    def test_ibv_devices(self):
        self.assertRegex(self.run_program("ibv_devices"), r"roce0\s+[0-9a-f]{16}")


class PingPong(AppTest):
    """Every program with polling and with events, checking each byte (-c)."""

    def both(self, program, *args):
        for events in ([], ["-e"]):
            with self.subTest(program=program, args=args, events=bool(events)):
                _, out = self.pair(program, "-c", *args, *events)
                self.assertRegex(out, r"\d+ iters in [\d.]+ seconds")

    def test_rc(self):
        self.both("ibv_rc_pingpong", "-g", "3")

    def test_uc(self):
        self.both("ibv_uc_pingpong", "-g", "3")

    def test_ud(self):
        self.both("ibv_ud_pingpong", "-g", "3")

    def test_srq(self):
        self.both("ibv_srq_pingpong", "-g", "3")

    def test_sizes(self):
        for program in ("ibv_rc_pingpong", "ibv_uc_pingpong", "ibv_srq_pingpong"):
            for size in (1, 3, 1023, 1025, 65536, 1048576):
                with self.subTest(program=program, size=size):
                    self.pair(program, "-c", "-g", "3", "-s", str(size), "-n", "100", "-r", "50")

    def test_sizes_up_to_1_mib_with_events(self):
        for program in ("ibv_rc_pingpong", "ibv_srq_pingpong"):
            with self.subTest(program=program):
                self.pair(program, "-c", "-e", "-g", "3", "-s", "1048576", "-n", "50", "-r", "50")

    def test_ud_sizes(self):
        for size in (1, 2, 1025, 4096):
            with self.subTest(size=size):
                self.pair("ibv_ud_pingpong", "-c", "-g", "3", "-s", str(size))

    def test_path_mtus(self):
        for program in ("ibv_rc_pingpong", "ibv_uc_pingpong", "ibv_srq_pingpong"):
            for mtu in (256, 512, 1024, 2048, 4096):
                with self.subTest(program=program, mtu=mtu):
                    self.pair(program, "-c", "-g", "3", "-m", str(mtu), "-s", "10001", "-n", "200")

    def test_every_listed_gid_works(self):
        gids = self.gids()
        self.assertGreaterEqual(len(gids), 2)
        for index, gid, kind in gids:
            for program in ("ibv_rc_pingpong", "ibv_ud_pingpong"):
                with self.subTest(program=program, index=index, gid=gid, kind=kind):
                    self.pair(program, "-c", "-g", str(index), "-n", "100")

    def test_extended_interface(self):
        self.pair("ibv_rc_pingpong", "-c", "-g", "3", "-N")
        self.pair("ibv_rc_pingpong", "-c", "-g", "3", "-t")

    def test_many_queue_pairs_on_one_srq(self):
        self.pair("ibv_srq_pingpong", "-c", "-g", "3", "-q", "64", "-n", "100")

    def test_unknown_device_is_refused(self):
        out = self.run_program("ibv_rc_pingpong", "-d", "nosuch", "-g", "3", expect=1)
        self.assertIn("nosuch", out)


class Concurrent(AppTest):
    def test_several_pairs_at_once(self):
        pairs = [self.start_pair([program, "-c", "-g", "3", "-n", "2000"])
                 for program in ("ibv_rc_pingpong", "ibv_uc_pingpong", "ibv_ud_pingpong", "ibv_srq_pingpong")
                 for _ in range(2)]
        for pair in pairs:
            self.finish_pair(pair)
