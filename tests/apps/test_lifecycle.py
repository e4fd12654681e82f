"""The NIC process: who starts it, who ends it, what it costs, what is left behind."""

import os
import signal
import subprocess
import threading
import time

from harness import AppTest, Nic, base_env, cpu_seconds, softrnic, wait_for


class Run(AppTest):
    """softrnic run: joins or starts a NIC process, and passes everything through."""

    def setUp(self):
        self.nic = Nic(self, start=False)

    def test_starts_a_nic_process_that_ends_with_its_last_user(self):
        out = self.nic.command("run", "--", "ibv_devices").stdout
        self.assertIn("roce0", out)
        wait_for(lambda: not self.daemon_runs(), "the NIC process to end with its last user")
        self.assertFalse(os.path.exists(os.path.join(self.nic.dir, "control.sock")))

    def daemon_runs(self):
        try:
            return self.nic.daemon_pid()
        except AssertionError:
            return None

    def test_two_terminals_share_it(self):
        argv = [softrnic(), "run", "--", "ibv_rc_pingpong", "-c", "-g", "3"]
        self.pair(*argv)

    def test_exit_code(self):
        self.assertEqual(self.nic.command("run", "--", "sh", "-c", "exit 37", check=False).returncode, 37)
        self.assertEqual(self.nic.command("run", "--", "true").returncode, 0)

    def test_program_not_found(self):
        done = self.nic.command("run", "--", "no-such-program-here", check=False)
        self.assertEqual(done.returncode, 127)
        self.assertIn("no-such-program-here", done.stderr)

    def test_death_by_signal_is_passed_on(self):
        done = self.nic.command("run", "--", "sh", "-c", "kill -TERM $$", check=False)
        self.assertIn(done.returncode, (-signal.SIGTERM, 128 + signal.SIGTERM))

    def test_signals_reach_the_program(self):
        script = "trap 'echo got it; exit 5' TERM; echo up; while :; do sleep 0.05; done"
        p = self.nic.start([softrnic(), "run", "--", "sh", "-c", script])
        wait_for(lambda: "up" in p.output(), "the program to start")
        p.signal(signal.SIGTERM)
        self.assertEqual(p.wait(), 5)
        self.assertIn("got it", p.output())

    def test_stdin_reaches_the_program(self):
        done = subprocess.run([softrnic(), "run", "--", "cat"], env=self.nic.control_env, input="through\n", text=True,
                              capture_output=True, timeout=60)
        self.assertEqual(done.stdout, "through\n")

    def test_private_runs_do_not_see_each_other(self):
        procs = [self.nic.start([softrnic(), "run", "--private", "--", "sh", "-c", "ibv_devices && exec sleep 1"])
                 for _ in range(3)]
        for p in procs:
            self.assertEqual(p.wait(), 0, p.output())
            self.assertIn("roce0", p.output())


class Daemon(AppTest):
    def test_status_tells_devices_processes_and_queue_pairs(self):
        p = self.nic.start([self.prog("verbs_cases"), "idle"], stdin=subprocess.PIPE)
        wait_for(lambda: p.output().count("pid ") == 2 or not p.running(), "the pair to be connected")
        pids = [int(line.split()[1]) for line in p.output().splitlines() if line.startswith("pid ")]
        text = self.nic.command("status", "--json").stdout
        self.assertIn("roce0", text)
        for pid in pids:
            self.assertIn(str(pid), text)
        self.nic.status()  # is JSON
        human = self.nic.command("status").stdout
        self.assertIn("roce0", human)
        self.assertIn("RTS", human.upper())
        p.child.stdin.close()
        p.child.stdin = None
        self.assertEqual(p.wait(), 0, p.output())

    def test_up_twice_and_down_twice(self):
        self.nic.command("up", check=False)
        self.assertIn("roce0", self.run_program("ibv_devices"))
        self.nic.command("down")
        self.assertNotEqual(self.nic.command("status", check=False).returncode, 0)
        self.nic.command("down", check=False)

    def test_many_processes_come_and_go(self):
        for _ in range(5):
            procs = [self.nic.start(["ibv_devinfo"]) for _ in range(8)]
            for p in procs:
                self.assertEqual(p.wait(), 0, p.output())
        self.pair("ibv_rc_pingpong", "-c", "-g", "3")

    def test_killed_programs_are_cleaned_up(self):
        for _ in range(5):
            server, client = self.start_pair(["ib_write_bw", "-F", "-x", "3", "-D", "30"])
            wait_for(lambda: self.sends(client.pid) or not client.running(), "traffic")
            self.assertTrue(client.running(), client.output())
            server.signal(signal.SIGKILL)
            server.wait()
            client.signal(signal.SIGKILL)
            client.wait()
        self.pair("ibv_rc_pingpong", "-c", "-g", "3")
        wait_for(lambda: "ib_write_bw" not in self.nic.command("status", "--json").stdout, "the dead to be forgotten")

    def sends(self, pid):
        return any(q["counters"]["sent_pkts"] > 0 for p in self.nic.status()["processes"] if p["pid"] == pid
                   for q in p["queue_pairs"])

    def test_nic_process_killed(self):
        p = self.nic.start([self.prog("verbs_cases"), "device_fatal"])
        wait_for(lambda: "ready" in p.output() or not p.running(), "the program to use its device")
        os.kill(self.nic.daemon_pid(), signal.SIGKILL)
        self.assertEqual(p.wait(), 0, p.output())

    def test_down_with_programs_attached(self):
        p = self.nic.start([self.prog("verbs_cases"), "device_fatal"])
        wait_for(lambda: "ready" in p.output() or not p.running(), "the program to use its device")
        self.nic.command("down")
        self.assertEqual(p.wait(), 0, p.output())

    def test_a_new_nic_process_after_a_killed_one(self):
        os.kill(self.nic.daemon_pid(), signal.SIGKILL)
        self.nic.up()  # finds a stale socket
        self.assertIn("roce0", self.run_program("ibv_devices"))


class Idle(AppTest):
    def test_nothing_costs_cpu_time(self):
        seconds = 4.0
        p = self.nic.start([self.prog("verbs_cases"), "idle"], stdin=subprocess.PIPE)
        wait_for(lambda: p.output().count("pid ") == 2 or not p.running(), "the pair to be connected")
        pids = [int(line.split()[1]) for line in p.output().splitlines() if line.startswith("pid ")]
        pids.append(self.nic.daemon_pid())

        def share():
            before = [cpu_seconds(pid) for pid in pids]
            time.sleep(seconds)
            return max(cpu_seconds(pid) - b for pid, b in zip(pids, before)) / seconds

        # The first seconds after traffic may still poll.
        wait_for(lambda: share() < 0.005, "CPU time below 0.5 % in each process", timeout=40)
        p.child.stdin.close()
        p.child.stdin = None
        self.assertEqual(p.wait(), 0, p.output())


class Environment(AppTest):
    def test_env_can_be_evaluated_by_a_shell(self):
        script = f'eval "$({softrnic()} env)" && ibv_devices'
        done = subprocess.run(["sh", "-c", script], env=self.nic.control_env, capture_output=True, text=True, timeout=60)
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertIn("roce0", done.stdout)

    def test_works_without_home_and_runtime_directory(self):
        env = {k: v for k, v in base_env().items() if k not in ("HOME", "XDG_RUNTIME_DIR", "TMPDIR")}
        done = subprocess.run([softrnic(), "run", "--private", "--", "ibv_devices"], env=env, capture_output=True,
                              text=True, timeout=60)
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertIn("roce0", done.stdout)

    def test_works_without_any_network(self):
        """In a network namespace of its own: no IPv6, no addresses, not even a loopback interface that is up."""
        alone = ["unshare", "--user", "--map-current-user", "--net"]
        if subprocess.run([*alone, "true"], env=base_env(), capture_output=True).returncode != 0:
            self.skipTest("no user namespaces here")
        private = [*alone, softrnic(), "run", "--private", "--"]
        out = self.run_program(*private, "ibv_devinfo", "-v")
        self.assertRegex(out, r"state:\s+PORT_ACTIVE")
        self.assertRegex(out, r"GID\[\s*0\]")
        for case in ("capabilities", "all_opcodes", "datagrams"):
            with self.subTest(case=case):
                self.run_program(*private, self.prog("verbs_cases"), case)

    def test_works_from_many_threads_of_this_process_at_once(self):
        results = []

        def one():
            results.append(self.nic.command("run", "--", "ibv_devices").stdout)

        threads = [threading.Thread(target=one) for _ in range(6)]
        for t in threads:
            t.start()
        for t in threads:
            t.join()
        self.assertEqual(len([r for r in results if "roce0" in r]), 6)
