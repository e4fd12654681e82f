"""Faults: single ones with the exchange of packets that follows, losses under load, and the commands."""

import json
import os
import re
import subprocess
from unittest.mock import ANY

from harness import AppTest, CaptureTest, softrnic, wait_for

# Long enough that no timer runs out because a machine is busy (0.5 s), and for what must not happen by the timer at
# all (34 s).
TIMEOUT, NO_TIMEOUT = 17, 23

# Opcodes of RC (IBA table 38), in short.
OPCODES = {0x00: "SF", 0x01: "SM", 0x02: "SL", 0x04: "SO", 0x06: "WF", 0x07: "WM", 0x08: "WL", 0x0A: "WO", 0x0C: "RQ",
           0x0D: "RF", 0x0E: "RM", 0x0F: "RL", 0x10: "RO", 0x11: "ACK", 0x12: "AA", 0x14: "FA"}
SEND, WRITE, READ = ("send", 2500), ("write", 2500), ("read", 2500)  # three packets at MTU 1024
SMALL, ATOMIC, RNR = ("send", 10), ("fetch_add", 8), ("rnr", 10)
OK = ["requester: wr 1 success", "requester: RTS", "responder: RTS"]
OK_RECV = [*OK, "responder: wr 7 success"]


class Exchanges(CaptureTest):
    """One fault, and exactly the packets and completions that the specification then asks for.

    A packet is written as its opcode and its PSN, counted from that of the first request: SF0 SM1 SL2, answered by
    ACK2. What a responder may combine or leave out (an acknowledgement for a duplicate, IBA 9.7.5.1.2) is optional in
    the pattern."""

    def exchange(self, operation, timeout, rule, word=False):
        """Runs the operation under the rule; returns (requests, responses, comments, completions)."""
        self.nic.command("fault", "add", rule)
        capture = self.start_capture(self.file())
        program = self.nic.start([self.prog("verbs_cases"), "fault_exchange", operation[0], str(operation[1]),
                                 str(timeout)],
                                 stdin=subprocess.PIPE)
        if word:  # the program goes on when the fault was applied
            wait_for(lambda: self.applied() == 1 or not program.running(), "the fault")
        program.child.stdin.close()
        program.child.stdin = None
        status = program.wait()
        self.stop_capture(capture)
        self.assertEqual(status, 0, program.output())
        completions = sorted(line for line in program.output().splitlines() if "passed" not in line)
        return (*self.decode(self.file()), completions)

    def applied(self):
        return sum(f["applied"] for f in json.loads(self.nic.command("fault", "list", "--json").stdout))

    def decode(self, path):
        bth = "infiniband.bth."
        fields = [bth + "opcode", bth + "psn", bth + "destqp", "infiniband.aeth.syndrome", "frame.comment"]
        argv = ["tshark", "-r", path, "-Y", "infiniband", "-T", "fields"]
        done = subprocess.run([*argv, *(x for f in fields for x in ("-e", f))], capture_output=True, text=True,
                              timeout=600)
        self.assertEqual(done.returncode, 0, done.stderr)
        requests, responses, comments = [], [], []
        rows = [(line.split("\t") + [""] * 5)[:5] for line in done.stdout.splitlines()]
        to_responder = rows[0][2]
        first_psn = min(int(psn, 0) for _, psn, qp, _, _ in rows if qp == to_responder)
        for opcode, psn, qp, syndrome, comment in rows:
            opcode, psn = int(opcode, 0), int(psn, 0)
            name = OPCODES[opcode]
            if name == "ACK":
                code = int(syndrome.split(",")[0], 0) & 0x7F
                name = {0x00: "ACK", 0x20: "RNR"}.get(code & 0x60, f"NAK{code & 0x1F}:")
            packet = f"{name}{(psn - first_psn) & 0xFFFFFF}"
            (requests if qp == to_responder else responses).append(packet)
            if comment:
                comments.append((packet, re.sub(r"^fault \d+: ", "", comment)))
        return " ".join(requests), " ".join(responses), comments

    def check(self, operation, rule, requests, responses, comments, completions=None, timeout=NO_TIMEOUT, word=False):
        got = self.exchange(operation, timeout, rule, word)
        self.assertRegex(got[0], f"^{requests}$", "requests")
        self.assertRegex(got[1], f"^{responses}$", "responses")
        self.assertEqual(got[2], comments)
        if completions is None:
            completions = OK_RECV if operation[0] in ("send", "rnr") else OK
        self.assertEqual(got[3], sorted(completions))

    # --- a request is lost ---
    def test_send_first_lost(self):
        """IBA 9.7.5.2.4: one sequence NAK for all that follows, and everything again from there."""
        self.check(SEND, "drop if op=send.first once", "SF0 SM1 SL2 SF0 SM1 SL2", "NAK0:0 ACK2", [("SF0", "dropped")])

    def test_send_middle_lost(self):
        self.check(SEND, "drop if op=send.middle once", "SF0 SM1 SL2 SM1 SL2", "NAK0:1 ACK2", [("SM1", "dropped")])

    def test_send_last_lost(self):
        """IBA 9.7.6.1.3: nobody notices but the requester's timer. What is sent again in front of it is a duplicate."""
        self.check(SEND, "drop if op=send.last once", "SF0 SM1 SL2 SF0( SM1)? SL2", "(ACK1 ){0,2}ACK2", [("SL2",
                   "dropped")],
                   timeout=TIMEOUT)

    def test_write_first_lost(self):
        self.check(WRITE, "drop if op=write.first once", "WF0 WM1 WL2 WF0 WM1 WL2", "NAK0:0 ACK2", [("WF0", "dropped")])

    def test_write_middle_lost(self):
        self.check(WRITE, "drop if op=write.middle once", "WF0 WM1 WL2 WM1 WL2", "NAK0:1 ACK2", [("WM1", "dropped")])

    def test_write_last_lost(self):
        self.check(WRITE, "drop if op=write.last once", "WF0 WM1 WL2 WF0( WM1)? WL2", "(ACK1 ){0,2}ACK2", [("WL2",
                   "dropped")],
                   timeout=TIMEOUT)

    def test_read_request_lost(self):
        self.check(READ, "drop if op=read-request once", "RQ0 RQ0", "RF0 RM1 RL2", [("RQ0", "dropped")],
                   timeout=TIMEOUT)

    def test_atomic_request_lost(self):
        self.check(ATOMIC, "drop if op=atomic once", "FA0 FA0", "AA0", [("FA0", "dropped")], timeout=TIMEOUT)

    # --- a response is lost ---
    def test_read_response_first_lost(self):
        """IBA 9.7.5.1.2: what follows tells of the gap; the READ is asked for again from the first missing byte."""
        self.check(READ, "drop if op=read-response.first once", "RQ0 RQ0", "RF0 RM1 RL2 RF0 RM1 RL2",
                   [("RF0", "dropped")])

    def test_read_response_middle_lost(self):
        self.check(READ, "drop if op=read-response msg=1 psn=msg+1 once", "RQ0 RQ1", "RF0 RM1 RL2 RF1 RL2", [("RM1",
                   "dropped")])

    def test_read_response_last_lost(self):
        self.check(READ, "drop if op=read-response.last once", "RQ0 RQ2", "RF0 RM1 RL2 RO2", [("RL2", "dropped")],
                   timeout=TIMEOUT)

    def test_ack_lost(self):
        """IBA 9.7.4.4: the duplicate is acknowledged and not executed: there is one receive completion."""
        self.check(SMALL, "drop if op=ack once", "SO0 SO0", "ACK0 ACK0", [("ACK0", "dropped")], timeout=TIMEOUT)

    def test_atomic_ack_lost(self):
        """IBA C9-110: the atomic is not executed again, the saved result is sent. The program checks both values."""
        self.check(ATOMIC, "drop if op=atomic-ack once", "FA0 FA0", "AA0 AA0", [("AA0", "dropped")], timeout=TIMEOUT)

    def test_rnr_nak_lost(self):
        """IBA 9.7.5.2.8: the requester hears of it by its timer only, and the receive was posted meanwhile."""
        self.check(RNR, "drop if op=rnr-nak once", "SO0( SO0)+", "RNR0( RNR0)* ACK0", [("RNR0", "dropped")],
                   timeout=TIMEOUT, word=True)

    # --- twice ---
    def test_send_doubled(self):
        self.check(SMALL, "duplicate if op=send once", "SO0 SO0", "ACK0( ACK0)?", [("SO0", "duplicated"), ("SO0",
                   "duplicated (copy)")])

    def test_atomic_request_doubled(self):
        self.check(ATOMIC, "duplicate if op=atomic once", "FA0 FA0", "AA0( AA0)?",
                   [("FA0", "duplicated"), ("FA0", "duplicated (copy)")])

    def test_read_request_doubled(self):
        self.check(READ, "duplicate if op=read-request once", "RQ0 RQ0", "RF0( RM1( RL2)?)?( RF0)? RM1 RL2",
                   [("RQ0", "duplicated"), ("RQ0", "duplicated (copy)")])

    def test_ack_doubled(self):
        """IBA 9.7.5.1.2: the second one says nothing new."""
        self.check(SEND, "duplicate if op=ack once", "SF0 SM1 SL2", "ACK2 ACK2", [("ACK2", "duplicated"), ("ACK2",
                   "duplicated (copy)")])

    # --- late ---
    def test_send_first_overtaken(self):
        """A NAK for the packet that is only late, and one for what it made early: when the second comes, none, some or all
        of the packets have been sent again."""
        self.check(SEND, "reorder 1 if op=send.first once", "SM1 SF0 SL2( SF0( SM1( SL2)?)?)? SM1 SL2",
                   "(NAK0:0 )?(ACK0 )*(NAK0:1 )?(ACK0 )*ACK2",
                   [("SF0", "put behind 1 later packet, at most for 100 ms")])

    def test_ack_delayed_beyond_the_timer(self):
        self.check(SMALL, "delay 60s if op=ack once", "SO0( SO0)+", "ACK0( ACK0)*", [], timeout=TIMEOUT)

    # --- damaged ---
    def test_write_corrupted(self):
        """IBA 9.7.4.1: a packet with a wrong ICRC is dropped silently, as if it were lost."""
        self.check(WRITE, "corrupt payload:100 if op=write.middle once", "WF0 WM1 WL2 WM1 WL2", "NAK0:1 ACK2",
                   [("WM1", "bit 3 of byte 66 inverted")])

    def test_ack_corrupted(self):
        self.check(SMALL, "corrupt aeth:20 if op=ack once", "SO0 SO0", "ACK0 ACK0", [("ACK0",
                   "bit 3 of byte 56 inverted")],
                   timeout=TIMEOUT)

    def test_send_middle_too_short(self):
        """IBA 9.7.4.1.6: a Middle packet has a full payload; else NAK invalid request, and both queue pairs fail."""
        self.check(SEND, "truncate -4 recompute if op=send.middle once", "SF0 SM1 SL2", "NAK1:1",
                   [("SM1", "truncated from 1082 to 1078 bytes, ICRC recomputed")],
                   ["requester: wr 1 remote invalid request error", "requester: ERR", "responder: wr 7 remote invalid request error",
                    "responder: ERR"])

    # --- wrong ---
    def test_access_nak(self):
        """IBA 9.7.5.2.5: a NAK remote access error ends the request; the responder knows nothing of it."""
        self.check(WRITE, "set aeth.syndrome=0x62 if op=ack once", "WF0 WM1 WL2", "NAK2:2",
                   [("NAK2:2", "aeth.syndrome 0x0 set to 0x62")],
                   ["requester: wr 1 remote access error", "requester: ERR", "responder: RTS"])

    def test_wrong_rkey(self):
        """IBA 9.7.4.1.5: the R_Key is checked with the first packet; the others find the queue pair in error."""
        got = self.exchange(WRITE, NO_TIMEOUT, "set reth.rkey=+0x100000 if op=write once")
        self.assertEqual(got[:2], ("WF0 WM1 WL2", "NAK2:0"))
        self.assertEqual(got[3], sorted(["requester: wr 1 remote access error", "requester: ERR", "responder: ERR"]))

    def test_ghost_ack(self):
        """IBA 9.7.5.1: an acknowledgement of a PSN that was never sent is ignored."""
        self.check(SMALL, "set bth.psn=+1000 if op=ack once", "SO0 SO0", "ACK1000 ACK0", [("ACK1000", ANY)],
                   timeout=TIMEOUT)


# (what is lost, operation of perftest)
LOSSES = ["drop if prob=1% seed=1", "drop if op=request prob=2% seed=2", "drop if op=response prob=5% seed=3"]


class Traffic(AppTest):
    """Everything completes, whatever is lost on the way."""

    def run_all(self, rules, *programs):
        for rule in rules:
            self.nic.command("fault", "add", rule)
        for argv in programs:
            with self.subTest(argv):
                self.pair(*argv.split())
        applied = [f["applied"] for f in json.loads(self.nic.command("fault", "list", "--json").stdout)]
        self.assertTrue(all(applied), applied)
        self.nic.command("fault", "del", "all")

    BANDWIDTH = [f"{p} -F -x 3 -u 16 -n 500 -s 16384" for p in ("ib_send_bw", "ib_write_bw", "ib_read_bw")]

    def test_losses(self):
        for rule in LOSSES:
            self.run_all([rule], *self.BANDWIDTH)

    def test_atomics(self):
        self.run_all(["drop if prob=2%"], "ib_atomic_bw -F -x 3 -u 16 -n 500")

    def test_everything_at_once(self):
        self.run_all(["drop if prob=0.5% seed=1", "duplicate if prob=1% seed=2", "reorder 3 if prob=1% seed=3",
                      "delay 200us if prob=1% seed=4", "corrupt if prob=0.5% seed=5", "ecn if every=3"], *self.BANDWIDTH)

    def test_checked_data(self):
        """A program that checks what it got, order included."""
        self.run_all(["drop if prob=1% seed=9", "corrupt if prob=1% seed=10", "duplicate if prob=1% seed=11"],
                     "ibv_rc_pingpong -c -g 3 -n 500")

    def test_switched_on_and_off_under_load(self):
        traffic = self.nic.start([self.prog("verbs_cases"), "numbered_traffic"], stdin=subprocess.PIPE)
        wait_for(lambda: "ready" in traffic.output() or not traffic.running(), "the traffic to start")
        for i in range(20):
            self.nic.command("fault", "add", f"delay 50us if every=100 seed={i}")
            self.nic.command("fault", "del", "all")
            self.assertTrue(traffic.running(), traffic.output())
        traffic.child.stdin.close()
        traffic.child.stdin = None
        self.assertEqual(traffic.wait(), 0, traffic.output())


class Commands(AppTest):
    def events(self):
        return [json.loads(line) for line in self.nic.command("events", "--json").stdout.splitlines()]

    def test_add_list_del(self):
        self.assertEqual(self.nic.command("fault", "add", "drop", "if", "qp=0x5", "once").stdout, "fault 1\n")
        path = os.path.join(self.nic.dir, "rules")
        with open(path, "w") as f:
            f.write("# two rules\necn if every=3\n\ndelay 1ms if op=ack\n")
        self.assertEqual(self.nic.command("fault", "add", "-f", path).stdout, "fault 2\nfault 3\n")
        listed = json.loads(self.nic.command("fault", "list", "--json").stdout)
        self.assertEqual([(f["id"], f["rule"], f["left"]) for f in listed],
                         [(1, "drop if qp=0x5 once", 1), (2, "ecn if every=3", None), (3, "delay 1ms if op=ack", None)])
        self.assertIn("drop if qp=0x5 once", self.nic.command("fault", "list").stdout)
        self.assertEqual(self.nic.status()["route"], "switch")
        self.nic.command("fault", "del", "2")
        self.nic.command("fault", "del", "all")
        self.assertEqual(self.nic.command("fault", "list").stdout, "")
        self.assertEqual(self.nic.status()["route"], "direct")

    def test_mistakes(self):
        done = self.nic.command("fault", "add", "drop if evry=3", check=False)
        self.assertEqual(done.returncode, 1)
        self.assertIn("column 9: unknown condition 'evry'", done.stderr)
        path = os.path.join(self.nic.dir, "rules")
        with open(path, "w") as f:
            f.write("drop\n\necn if evry=3\n")
        done = self.nic.command("fault", "add", "-f", path, check=False)
        self.assertIn(f"{path}: line 3, column 8: unknown condition 'evry'", done.stderr)
        self.assertEqual(self.nic.command("fault", "list").stdout, "")
        self.assertIn("there is no fault 7", self.nic.command("fault", "del", "7", check=False).stderr)
        self.assertIn("not 'x'", self.nic.command("fault", "del", "x", check=False).stderr)

    def test_of_one_program(self):
        argv = [self.prog("verbs_cases"), "fault_exchange", "send", "2500", "14"]
        self.nic.command("run", "--fault", "drop if op=send.middle once", "--", *argv)
        self.assertEqual(self.nic.command("fault", "list").stdout, "")
        applied = [e for e in self.events() if e["event"] == "fault"]
        self.assertEqual(len(applied), 1)
        self.assertEqual((applied[0]["what"], applied[0]["op"]), ("dropped", "RC SEND Middle"))
        done = self.nic.command("run", "--fault", "dorp", "--", "true", check=False)
        self.assertEqual(done.returncode, 125)
        self.assertIn("unknown action 'dorp'", done.stderr)

    def test_events(self):
        follower = self.nic.start([softrnic(), "events", "--follow"])
        self.case("inline_data")
        wait_for(lambda: "vf1 detached" in follower.output() or not follower.running(), "the end of the VF")
        self.nic.command("fault", "add", "drop if qp=1")
        self.nic.command("fault", "del", "all")
        wait_for(lambda: "fault 1 removed" in follower.output() or not follower.running(), "the events")
        kinds = [e["event"] for e in self.events()]
        self.assertEqual(kinds[0], "vf-attached")
        self.assertIn("vf-gone", kinds)
        self.assertEqual(kinds[-2:], ["fault-added", "fault-removed"])
        self.assertRegex(follower.output(), r"(?m)^\d\d:\d\d:\d\d\.\d{6} vf1 attached: process \d+ \(verbs_cases\)$")
        self.nic.command("down")
        self.assertEqual(follower.wait(), 0, follower.output())
