"""The communication manager against Linux's: connections and resolutions, asked for by either side.

Our side is a station that has a communication manager and no queue pairs; in the machine, librdmacm's programs connect
those of rxe without sending anything.
"""

import os
import subprocess
import unittest

import harness
from harness import wait_for
import lab
from peer_vm import PeerVm, image_directory

STATION = "10.200.0.9"
COUNT = 3
UDADDY_PORT = 7174  # it has no option for another one

vm = None


def setUpModule():
    global vm
    network = lab.Lab()
    network.tap("tap0", 1500)
    vm = PeerVm(image_directory(lab.image_cache), "tap0")
    unittest.addModuleCleanup(vm.stop)
    vm.boot()
    network.veth("cm0", 1500)


class Station:
    def __init__(self, test, *words):
        line = [os.path.join(harness.Build.progs, "cm_station"), "cm0", STATION, *map(str, words)]
        self.process = subprocess.Popen(line, stdout=subprocess.PIPE, text=True)
        test.addCleanup(self.stop)
        self.first = self.process.stdout.readline()

    def wait(self):
        """(status, lines)"""
        out, _ = self.process.communicate(timeout=90)
        return self.process.returncode, out.splitlines()

    def stop(self):
        self.process.kill()
        self.process.wait()
        self.process.stdout.close()


def listening(port):
    return vm.run(f"rdma resource show cm_id | grep -q ':{port} '")[0] == 0


class Connections(unittest.TestCase):
    def count(self, lines, start):
        return sum(line.startswith(start) for line in lines)

    def test_linux_connects(self):
        station = Station(self, "listen", 7001, COUNT)
        status, out = vm.run(f"ucmatose -s {STATION} -p 7001 -c {COUNT} -C 0")
        code, lines = station.wait()
        self.assertEqual((status, code), (0, 0), out + "\n".join(lines))
        self.assertEqual(self.count(lines, "req_received"), COUNT, lines)
        self.assertTrue(all("addresses=1" in line for line in lines if line.startswith("req_received")), lines)
        self.assertEqual(self.count(lines, "rtu_received"), COUNT, lines)
        self.assertEqual(self.count(lines, "dreq_received") + self.count(lines, "drep_received"), COUNT, lines)

    def test_linux_is_connected(self):
        server = vm.start(f"ucmatose -p 7002 -c {COUNT} -C 0")
        wait_for(lambda: listening(7002), "ucmatose to listen")
        code, lines = Station(self, "connect", vm.address, 7002, COUNT).wait()
        status, out = server.wait(60)
        self.assertEqual((status, code), (0, 0), out + "\n".join(lines))
        self.assertEqual(self.count(lines, "rep_received"), COUNT, lines)
        self.assertEqual(self.count(lines, "dreq_received") + self.count(lines, "drep_received"), COUNT, lines)

    def test_nobody_listens(self):
        code, lines = Station(self, "connect", vm.address, 7003, 1).wait()
        self.assertEqual(code, 1, lines)
        self.assertIn("rej_received reason=8", lines)
        station = Station(self, "listen", 7004, 1)
        status, out = vm.run(f"ucmatose -s {STATION} -p 7005 -c 1 -C 0")
        self.assertIn("RDMA_CM_EVENT_REJECTED, error: 8", out)
        station.stop()

    def test_linux_resolves(self):
        station = Station(self, "listen", UDADDY_PORT, COUNT)
        status, out = vm.run(f"udaddy -s {STATION} -c {COUNT} -C 0")
        code, lines = station.wait()
        self.assertEqual((status, code), (0, 0), out + "\n".join(lines))
        self.assertEqual(self.count(lines, "sidr_req_received addresses=1"), COUNT, lines)

    def test_linux_is_resolved(self):
        server = vm.start(f"udaddy -c {COUNT} -C 0")
        wait_for(lambda: listening(UDADDY_PORT), "udaddy to listen")
        code, lines = Station(self, "resolve", vm.address, UDADDY_PORT, COUNT).wait()
        status, out = server.wait(60)
        self.assertEqual((status, code), (0, 0), out + "\n".join(lines))
        self.assertEqual(self.count(lines, "sidr_rep_received status=0"), COUNT, lines)
        self.assertTrue(all("qkey=0x01234567" in line for line in lines if line.startswith("sidr_rep")), lines)
