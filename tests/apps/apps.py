#!/usr/bin/python3
"""Runs unmodified verbs programs, and some of our own, on a softrnic build.

    apps.py --build BUILD_DIR [--asan] [--list] [TEST...]

TEST is MODULE, MODULE.CLASS or MODULE.CLASS.METHOD. Started as root it becomes an unprivileged user
first, because that is how softrnic is used. Exit status 77: skipped, with the reason on the last line.
"""

import argparse
import atexit
import importlib
import os
import shutil
import signal
import sys
import tempfile
import unittest

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path.insert(0, HERE)
sys.dont_write_bytecode = True

import harness  # noqa: E402

NOBODY = 65534
SKIPPED = 77
LABS = os.path.join(os.path.dirname(os.path.dirname(HERE)), "docs", "labs")


def stage_as_nobody(args):
    """Copies what the tests need to where an unprivileged user can read it, and goes on there as that user."""
    stage = tempfile.mkdtemp(prefix="softrnic-apps-")
    os.chmod(stage, 0o755)
    keep = {"bin": os.path.join(args.build, "bin"), "lib/softrnic": os.path.join(args.build, "lib"),
            "progs": os.path.join(args.build, "tests", "apps"), "apps": HERE,
            "share": os.path.join(args.build, "share"), "labs": LABS, "judges": os.path.join(os.path.dirname(HERE), "judges")}
    for name, source in keep.items():
        if os.path.isdir(source):
            shutil.copytree(source, os.path.join(stage, name), symlinks=True,
                            ignore=shutil.ignore_patterns("CMakeFiles", "*.o", "__pycache__"))
    work = os.path.join(stage, "work")
    os.mkdir(work, 0o700)
    os.chown(work, NOBODY, NOBODY)
    child = os.fork()
    if child == 0:
        os.chdir(work)
        os.execvp("setpriv", ["setpriv", f"--reuid={NOBODY}", f"--regid={NOBODY}", "--clear-groups", "--no-new-privs",
                              "--pdeathsig", "TERM", sys.executable, os.path.join(stage, "apps", "apps.py"), "--staged", stage, *sys.argv[1:]])
    status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    shutil.rmtree(stage, ignore_errors=True)
    sys.exit(status if status >= 0 else 128 - status)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--build", required=True, help="build directory")
    parser.add_argument("--asan", action="store_true", help="the build has the address sanitizer")
    parser.add_argument("--list", action="store_true", help="list the tests")
    parser.add_argument("--staged", help=argparse.SUPPRESS)
    parser.add_argument("-v", "--verbose", action="store_true")
    parser.add_argument("tests", nargs="*")
    args = parser.parse_args()
    args.build = os.path.abspath(args.build)

    if os.geteuid() == 0 and not args.list:
        stage_as_nobody(args)

    if args.staged:
        b = args.staged
        harness.Build.bin, harness.Build.progs = f"{b}/bin", f"{b}/progs"
        harness.Build.judges, harness.Build.workdir = f"{b}/judges", f"{b}/work"
        harness.Build.share, harness.Build.labs = f"{b}/share", f"{b}/labs"
    else:
        harness.Build.bin = f"{args.build}/bin"
        harness.Build.progs = f"{args.build}/tests/apps"
        harness.Build.judges = os.path.join(os.path.dirname(HERE), "judges")
        harness.Build.share, harness.Build.labs = f"{args.build}/share", LABS
        harness.Build.workdir = tempfile.mkdtemp(prefix="softrnic-apps-")
        atexit.register(shutil.rmtree, harness.Build.workdir, ignore_errors=True)
    harness.Build.asan = args.asan

    os.environ.update(harness.base_env())  # for the tools that the tests call, too
    os.environ.pop("XDG_CONFIG_HOME", None)
    # Ended from outside, it still ends what it started.
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    atexit.register(harness.Nic.close_all)

    modules = sorted(f[:-3] for f in os.listdir(HERE) if f.startswith("test_") and f.endswith(".py"))
    loader = unittest.TestLoader()
    suite = unittest.TestSuite()
    for name in args.tests or modules:
        module = importlib.import_module(name.split(".")[0])
        rest = ".".join(name.split(".")[1:])
        suite.addTests(loader.loadTestsFromName(rest, module) if rest else loader.loadTestsFromModule(module))
    if args.list:
        def walk(s):
            for t in s:
                if isinstance(t, unittest.TestSuite):
                    walk(t)
                else:
                    print(t.id())
        walk(suite)
        return
    result = unittest.TextTestRunner(verbosity=2, stream=sys.stdout).run(suite)
    if result.skipped and result.testsRun == 0:
        print(f"apps: SKIPPED: {result.skipped[0][1]}", flush=True)
        sys.exit(SKIPPED)
    sys.exit(0 if result.wasSuccessful() and result.testsRun > 0 else 1)


if __name__ == "__main__":
    main()
