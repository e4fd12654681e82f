#!/usr/bin/python3
"""Makes docs/conformance.md: which clause of which specification is implemented where and tested by what.

A clause is tagged in a comment of protocols/ or engine/ (`// IBA C9-61`, `// IBA 9.7.4.1.2, 9.7.5`,
`// RFC 4861 s7.2.6`) and in the name of a test (`TEST_CASE("IBA C9-61: ...")`). A test of a clause is a
test of every clause that contains it: one of 9.7.4.1.2 tests 9.7.4.1, too. An RFC without a section is a
reference and needs no test.

Usage: conformance.py [--check | --untested]
  (nothing)   writes docs/conformance.md
  --check     exit code 1 when a clause tagged in protocols/ has no test, or the document is out of date
  --untested  lists the clauses without a test and where they stand
"""
import argparse
import collections
import pathlib
import re
import sys

ROOT = pathlib.Path(__file__).resolve().parent.parent
DOCUMENT = ROOT / "docs" / "conformance.md"
SOURCES = ("protocols", "engine")
MUST_TEST = "protocols"

LIST = r"\s*(?:,|and)\s*"
NUMBER = r"A?\d+(?:\.\d+)+"
IBA_CLAUSE = r"(?:o?C[A-Z]?\d+-\d+(?:\.\d+)*(?:\.[a-z]\d+)?|%s|tables?\s+\d+(?:(?:,\s*|\s+and\s+|\s+to\s+)\d+)*)" % NUMBER
IBA = re.compile(r"\bIBA\s+(%s(?:%s%s)*)" % (IBA_CLAUSE, LIST, IBA_CLAUSE))
RFC = re.compile(r"\bRFC\s?(\d+)((?:%s|\s+)(?:s|appendix\s+)[A-Z0-9]+(?:\.\d+)*(?:%s(?:s|appendix\s+)[A-Z0-9]+(?:\.\d+)*)*)?"
                 % (LIST, LIST))
COMMENT = re.compile(r"//(.*)$")
TEST_CASE = re.compile(r'\bTEST_CASE\(\s*((?:"(?:[^"\\]|\\.)*"\s*)+)')

Clause = collections.namedtuple("Clause", "spec text")


def clauses_in(text):
    """The clauses that a piece of text names."""
    found = []
    for match in IBA.finditer(text):
        for part in re.split(r",\s*|\s+and\s+(?=[A-Zo]|\d+\.|tables?)", match.group(1)):
            part = part.strip()
            table = re.match(r"tables?\s+(\d+)(?:\s+to\s+(\d+))?", part)
            if table:
                numbers = [int(n) for n in re.findall(r"\d+", part)]
                if table.group(2):
                    numbers = range(numbers[0], numbers[1] + 1)
                found += [Clause("IBA", "table %d" % n) for n in numbers]
            elif re.fullmatch(IBA_CLAUSE, part):
                found.append(Clause("IBA", part))
    for match in RFC.finditer(text):
        spec = "RFC " + match.group(1)
        sections = re.findall(r"(?:s|appendix\s+)([A-Z0-9]+(?:\.\d+)*)", match.group(2) or "")
        found += [Clause(spec, s) for s in sections] or [Clause(spec, "")]
    return found


def scan_sources():
    """Clause -> sorted list of files whose comments name it."""
    where = collections.defaultdict(set)
    for top in SOURCES:
        for path in sorted((ROOT / top).rglob("*")):
            if path.suffix not in (".h", ".cpp"):
                continue
            for line in path.read_text().splitlines():
                comment = COMMENT.search(line)
                for clause in clauses_in(comment.group(1)) if comment else []:
                    where[clause].add(str(path.relative_to(ROOT)))
    return where


def scan_tests():
    """Clause -> list of (file, name of the test)."""
    tests = collections.defaultdict(list)
    for path in sorted((ROOT / "tests").rglob("*.cpp")):
        for match in TEST_CASE.finditer(path.read_text()):
            name = "".join(re.findall(r'"((?:[^"\\]|\\.)*)"', match.group(1)))
            for clause in dict.fromkeys(clauses_in(name)):
                tests[clause].append((str(path.relative_to(ROOT)), name.replace('\\"', '"')))
    return tests


def covers(test, clause):
    """True when a test of clause `test` tests `clause`."""
    return test.spec == clause.spec and (test.text == clause.text or test.text.startswith(clause.text + "."))


def tests_of(clause, tests):
    found = []
    for tested, cases in tests.items():
        if covers(tested, clause):
            found += [c for c in cases if c not in found]
    return sorted(found)


def sort_key(clause):
    def pieces(text):
        return [(0, int(p), "") if p.isdigit() else (1, 0, p) for p in re.findall(r"\d+|[A-Za-z]+", text)]
    return (not clause.spec.startswith("IBA"), pieces(clause.spec), pieces(clause.text))


def untested(where, tests):
    return [c for c in sorted(where, key=sort_key)
            if c.text and not tests_of(c, tests) and any(f.startswith(MUST_TEST + "/") for f in where[c])]


def document(where, tests):
    lines = ["# Conformance", "",
             "Made by `tools/conformance.py` from the clauses named in comments and in the names of tests; do not edit.",
             "IBA is the InfiniBand Architecture Specification, volume 1, with its annexes A16 (RoCE) and A17 (RoCE v2)."]
    spec = None
    every = set(where) | set(tests)
    for clause in sorted(every, key=sort_key):
        if clause.spec != spec:
            spec = clause.spec
            lines += ["", "## " + spec, "", "| clause | implemented in | tests |", "|---|---|---|"]
        files = "<br>".join("`%s`" % f for f in sorted(where.get(clause, ())))
        cases = "<br>".join(name.replace("|", "\\|") for _, name in tests_of(clause, tests) if clause.text) or (
            "<br>".join(name.replace("|", "\\|") for _, name in tests.get(clause, ())))
        lines.append("| %s | %s | %s |" % (clause.text or "(whole)", files, cases))
    return "\n".join(lines) + "\n"


def main():
    parser = argparse.ArgumentParser(description="Makes or checks docs/conformance.md.")
    mode = parser.add_mutually_exclusive_group()
    mode.add_argument("--check", action="store_true", help="fail on clauses without a test and on an old document")
    mode.add_argument("--untested", action="store_true", help="list clauses without a test")
    args = parser.parse_args()

    where, tests = scan_sources(), scan_tests()
    missing = untested(where, tests)
    if args.check or args.untested:
        for clause in missing:
            print("no test names %s %s (%s)" % (clause.spec, clause.text, ", ".join(sorted(where[clause]))))
    if args.untested:
        return 0
    text = document(where, tests)
    if not args.check:
        DOCUMENT.parent.mkdir(exist_ok=True)
        DOCUMENT.write_text(text)
        return 0
    stale = not DOCUMENT.exists() or DOCUMENT.read_text() != text
    if stale:
        print("docs/conformance.md is out of date: run tools/conformance.py")
    return 1 if missing or stale else 0


if __name__ == "__main__":
    sys.exit(main())
