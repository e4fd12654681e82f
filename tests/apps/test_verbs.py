"""Our own verbs program, verbs_cases: behaviour that the third-party programs do not check."""

from harness import AppTest


class Traffic(AppTest):
    def test_payload_sizes(self):
        self.case("payload_sizes")

    def test_deep_queues(self):
        self.case("deep_queues")

    def test_inline_data(self):
        self.case("inline_data")

    def test_fence_and_order(self):
        self.case("fence_and_order")

    def test_atomics(self):
        self.case("atomics")

    def test_events(self):
        self.case("events")

    def test_datagrams(self):
        self.case("datagrams")

    def test_multicast(self):
        self.case("multicast")

    def test_all_opcodes(self):
        self.case("all_opcodes")


class Errors(AppTest):
    def test_remote_access_error(self):
        self.case("remote_access_error")

    def test_access_rights(self):
        self.case("access_rights")

    def test_local_errors(self):
        self.case("local_errors")

    def test_flushed_receives(self):
        self.case("flushed_receives")

    def test_last_wqe_reached(self):
        self.case("last_wqe_reached")

    def test_srq_limit(self):
        self.case("srq_limit")

    def test_rnr(self):
        self.case("rnr")

    def test_refused_attributes(self):
        self.case("refused_attributes")

    def test_cq_overflow(self):
        self.case("cq_overflow")

    def test_different_mtus(self):
        self.case("different_mtus")

    def test_no_such_peer(self):
        self.case("no_such_peer")

    def test_refused_registrations(self):
        self.case("refused_registrations")

    def test_busy_objects(self):
        self.case("busy_objects")

    def test_mixed_gids(self):
        self.case("mixed_gids")


class DeviceLife(AppTest):
    def test_capabilities(self):
        self.case("capabilities")

    def test_limits(self):
        self.case("limits")

    def test_full_queue(self):
        self.case("full_queue")

    def test_unsupported_calls(self):
        self.case("unsupported_calls")

    def test_connection_cycles(self):
        self.case("connection_cycles")

    def test_open_close_cycles(self):
        self.case("open_close_cycles")

    def test_fork_child(self):
        self.case("fork_child")

    def test_fork_after_exit(self):
        self.case("fork_after_exit")


class Peers(AppTest):
    """Targets that make no verbs calls."""

    def test_passive_target(self):
        self.case("passive_target")

    def test_stopped_target(self):
        self.case("stopped_target")

    def test_killed_peer(self):
        self.case("killed_peer")

    def test_unmapped_memory(self):
        self.case("unmapped_memory")
