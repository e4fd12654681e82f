"""Debian's perftest: bandwidth and latency of SEND, WRITE, READ and atomics, in the ways it offers."""

import re

from harness import AppTest

BW = ("ib_send_bw", "ib_write_bw", "ib_read_bw", "ib_atomic_bw")
LAT = ("ib_send_lat", "ib_write_lat", "ib_read_lat", "ib_atomic_lat")


class Perftest(AppTest):
    def perf(self, program, *args, sizes=None):
        """Runs a pair and checks the table of results that the client prints."""
        with self.subTest(program=program, args=args):
            _, out = self.pair(program, "-F", "-x", "3", *args)
            rows = re.findall(r"^ *(\d+) +(\d+) +\d+\.\d+", out, re.M)
            self.assertTrue(rows, out)
            if sizes is not None:
                self.assertEqual([int(size) for size, _ in rows], sizes, out)
            self.assertNotIn("rror", out)


class Defaults(Perftest):
    def test_bandwidth(self):
        for program in BW:
            self.perf(program)

    def test_latency(self):
        for program in LAT:
            self.perf(program)

    def test_gid_chosen_by_perftest(self):
        for program in ("ib_send_bw", "ib_write_lat"):
            with self.subTest(program=program):
                self.pair(program, "-F")


class AllSizes(Perftest):
    SIZES = [2**i for i in range(1, 24)]

    def test_bandwidth(self):
        for program in BW[:3]:
            self.perf(program, "-a", "-n", "50", sizes=self.SIZES)

    def test_bandwidth_both_ways(self):
        for program in BW[:3]:
            self.perf(program, "-a", "-b", "-n", "20", "-N", sizes=self.SIZES)

    def test_latency(self):
        for program in LAT[:3]:
            self.perf(program, "-a", "-n", "50", sizes=self.SIZES)

    def test_unreliable(self):
        self.perf("ib_send_bw", "-a", "-c", "UD", "-n", "200")
        self.perf("ib_send_lat", "-a", "-c", "UD", "-n", "200")
        self.perf("ib_write_bw", "-a", "-c", "UC", "-n", "50", sizes=self.SIZES)


class BothWays(Perftest):
    def test_bidirectional(self):
        for program in BW:
            self.perf(program, "-b")

    def test_bidirectional_unreliable(self):
        self.perf("ib_send_bw", "-b", "-c", "UC")
        self.perf("ib_send_bw", "-b", "-c", "UD")
        self.perf("ib_write_bw", "-b", "-c", "UC")

    def test_bidirectional_many_queue_pairs(self):
        self.perf("ib_write_bw", "-b", "-q", "8")


class QueuePairs(Perftest):
    def test_16_queue_pairs(self):
        for program in BW:
            self.perf(program, "-q", "16", "-n", "500")

    def test_16_queue_pairs_unreliable(self):
        self.perf("ib_send_bw", "-q", "16", "-c", "UC", "-n", "500")
        self.perf("ib_send_bw", "-q", "16", "-c", "UD", "-n", "500")

    def test_deep_queues(self):
        self.perf("ib_write_bw", "-t", "1024", "-n", "5000", "-s", "4096")
        self.perf("ib_send_bw", "-t", "512", "-r", "1024", "-n", "5000", "-s", "4096")
        self.perf("ib_read_bw", "-t", "512", "-n", "5000", "-s", "4096")


class Events(Perftest):
    def test_bandwidth(self):
        for program in BW:
            if program != "ib_write_bw":  # perftest has no events for WRITE
                self.perf(program, "-e")

    def test_latency(self):
        for program in ("ib_send_lat", "ib_read_lat", "ib_atomic_lat"):
            self.perf(program, "-e")

    def test_unreliable(self):
        self.perf("ib_send_bw", "-e", "-c", "UC")
        self.perf("ib_send_bw", "-e", "-c", "UD")
        self.perf("ib_send_lat", "-e", "-c", "UD")


class Inline(Perftest):
    def test_inline(self):
        for program in ("ib_send_bw", "ib_write_bw", "ib_send_lat", "ib_write_lat"):
            self.perf(program, "-I", "256", "-s", "200")

    def test_largest_inline(self):
        self.perf("ib_write_bw", "-I", "512", "-s", "512")

    def test_inline_unreliable(self):
        self.perf("ib_send_bw", "-I", "128", "-s", "100", "-c", "UD")
        self.perf("ib_send_lat", "-I", "128", "-s", "100", "-c", "UC")


class SharedReceiveQueue(Perftest):
    def test_srq(self):
        self.perf("ib_send_bw", "--use-srq")
        self.perf("ib_send_bw", "--use-srq", "-q", "16", "-n", "500")
        self.perf("ib_send_bw", "--use-srq", "-c", "UD")
        self.perf("ib_send_bw", "--use-srq", "-e")


class Transports(Perftest):
    def test_uc(self):
        for program in ("ib_send_bw", "ib_write_bw", "ib_send_lat", "ib_write_lat"):
            self.perf(program, "-c", "UC")

    def test_ud(self):
        for program in ("ib_send_bw", "ib_send_lat"):
            self.perf(program, "-c", "UD")

    def test_path_mtus(self):
        for mtu in (256, 512, 1024, 2048, 4096):
            self.perf("ib_send_bw", "-m", str(mtu), "-n", "500")
            self.perf("ib_write_bw", "-m", str(mtu), "-n", "500")
            self.perf("ib_read_bw", "-m", str(mtu), "-n", "500")
            self.perf("ib_send_lat", "-m", str(mtu), "-s", "5000")
            self.perf("ib_send_bw", "-m", str(mtu), "-n", "500", "-c", "UC")

    def test_both_atomics(self):
        for kind in ("CMP_AND_SWAP", "FETCH_AND_ADD"):
            self.perf("ib_atomic_bw", "-A", kind)
            self.perf("ib_atomic_lat", "-A", kind)

    def test_post_lists(self):
        self.perf("ib_write_bw", "-l", "16", "-s", "64", "-n", "5120")
        self.perf("ib_send_bw", "-l", "16", "--recv_post_list", "16", "-s", "64", "-n", "5120")

    def test_old_and_new_post_interface(self):
        for program in ("ib_send_bw", "ib_write_bw", "ib_read_bw", "ib_atomic_bw"):
            self.perf(program, "--use_old_post_send")


class Concurrent(Perftest):
    def test_several_pairs_at_once(self):
        pairs = [self.start_pair([program, "-F", "-x", "3", *args])
                 for program, *args in (("ib_send_bw",), ("ib_write_bw", "-b"), ("ib_read_bw", "-q", "4"),
                                        ("ib_atomic_lat",), ("ib_send_lat", "-e"), ("ib_send_bw", "-c", "UD"))]
        for pair in pairs:
            self.finish_pair(pair)
