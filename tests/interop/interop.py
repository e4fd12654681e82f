#!/usr/bin/python3
"""Runs softrnic on a network against the soft RDMA drivers of a Linux kernel, and against itself.

    interop.py --build BUILD_DIR [--list] [TEST...]

TEST is MODULE, MODULE.CLASS or MODULE.CLASS.METHOD. Works as root, and as any user where user namespaces are allowed. Exit
status 77: skipped, with the reason on the last line.
"""

import argparse
import atexit
import importlib
import os
import shutil
import sys
import tempfile
import unittest

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path.insert(0, HERE)
sys.path.insert(0, os.path.join(os.path.dirname(HERE), "apps"))
sys.dont_write_bytecode = True

import harness  # noqa: E402
import lab  # noqa: E402
import peer_vm  # noqa: E402

SKIPPED = 77
INSIDE = "SOFTRNIC_INTEROP_INSIDE"


def skip(reason):
    print(f"interop: SKIPPED: {reason}", flush=True)
    sys.exit(SKIPPED)


def enter_namespace(needs_vm, cache):
    """Goes on as root of a network namespace of its own. The VM's image is built before: that needs the network."""
    reason = (peer_vm.why_no_qemu() if needs_vm else None) or lab.why_no_lab()
    if reason:
        skip(reason)
    if needs_vm:
        peer_vm.image_directory(cache)
    as_root = [] if os.geteuid() == 0 else ["--user", "--map-root-user"]
    # Its own process ids, so that nothing outlives the test however it ends.
    os.execvpe("unshare", ["unshare", *as_root, "--net", "--mount", "--pid", "--fork", "--kill-child", "--mount-proc",
                           sys.executable, os.path.abspath(__file__), *sys.argv[1:]], {**os.environ, INSIDE: "1"})


def load(names):
    loader, suite = unittest.TestLoader(), unittest.TestSuite()
    for name in names:
        module = importlib.import_module(name.split(".")[0])
        rest = ".".join(name.split(".")[1:])
        suite.addTests(loader.loadTestsFromName(rest, module) if rest else loader.loadTestsFromModule(module))
    return suite


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--build", required=True, help="build directory")
    parser.add_argument("--asan", action="store_true", help="the build has the address sanitizer")
    parser.add_argument("--list", action="store_true", help="list the tests")
    parser.add_argument("tests", nargs="*", metavar="TEST")
    args = parser.parse_args()
    modules = sorted(f[:-3] for f in os.listdir(HERE) if f.startswith("test_") and f.endswith(".py"))
    names = args.tests or modules

    build = os.path.abspath(args.build)
    cache = os.path.join(build, "interop")
    if not args.list and not os.environ.get(INSIDE):
        enter_namespace(any(name.startswith("test_rxe") for name in names), cache)

    harness.Build.bin, harness.Build.lib = f"{build}/bin", f"{build}/lib"
    harness.Build.progs = f"{build}/tests/interop"
    harness.Build.judges = os.path.join(os.path.dirname(HERE), "judges")
    harness.Build.asan = args.asan
    lab.image_cache = cache
    harness.Build.workdir = tempfile.mkdtemp(prefix="softrnic-interop-")
    atexit.register(shutil.rmtree, harness.Build.workdir, ignore_errors=True)

    suite = load(names)
    if args.list:
        def walk(s):
            for t in s:
                walk(t) if isinstance(t, unittest.TestSuite) else print(t.id())
        walk(suite)
        return
    result = unittest.TextTestRunner(verbosity=2, stream=sys.stdout).run(suite)
    sys.exit(0 if result.wasSuccessful() and result.testsRun > 0 else 1)


if __name__ == "__main__":
    main()
