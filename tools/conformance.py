#!/usr/bin/python3
"""Makes docs/conformance.md: which clause of which specification is implemented where and tested by what.

A clause is tagged in a comment of protocols/ or engine/ (`// IBA C9-94`, `// IBA 9.7.4.1.2, 9.7.5`,
`// RFC 4861 s7.2.6`) and in the name of a test (`TEST_CASE("IBA C9-94: ...")`, `TEST_CASE("RFC 4861 7.2.6:
...")`; the `s` before a section may be left out). A clause is tested when a test names it or one of its
subsections: a test of 9.7.4.1.2 is one of 9.7.4.1, too. An RFC without a section is a reference and needs
no test.

Usage: conformance.py [--check | --untested]
  (nothing)   writes docs/conformance.md
  --check     exit code 1 when a clause tagged in protocols/ or engine/nic/ has no test, or the document is
              out of date
  --untested  lists the clauses without a test and where they stand
"""
import argparse
import collections
import os
import pathlib
import re
import sys

ROOT = pathlib.Path(__file__).resolve().parent.parent
DOCUMENT = ROOT / "docs" / "conformance.md"
SOURCES = ("protocols", "engine")
MUST_TEST = ("protocols/", "engine/nic/")

LIST = r"\s*(?:,|and)\s*"
NUMBER = r"A?\d+(?:\.\d+)+"
STATEMENT = r"[Co]A?\d+-\d+(?:\.\d+)*(?:\.[a-z]\d+)?"
TABLES = r"tables?\s+\d+(?:(?:,\s*|\s+and\s+|\s+to\s+)\d+)*(?![\d.-])"
IBA_CLAUSE = "(?:%s|%s|%s)" % (STATEMENT, NUMBER, TABLES)
IBA = re.compile(r"\bIBA\s+(%s(?:%s%s)*)" % (IBA_CLAUSE, LIST, IBA_CLAUSE))
SECTION = r"(?:s?\d+(?:\.\d+)*\b|appendix\s+[A-Z]\b)"
RFC = re.compile(r"\bRFC\s?(\d+)(\s+%s(?:%s%s)*)?" % (SECTION, LIST, SECTION))
COMMENT = re.compile(r"//(.*)$")
TEST_CASE = re.compile(r'\bTEST_CASE\(\s*((?:"(?:[^"\\]|\\.)*"\s*)+)')

Clause = collections.namedtuple("Clause", "spec text")


def iba_clauses(text):
    """The clauses of a list as it follows "IBA"."""
    found = []
    for part in re.findall(IBA_CLAUSE, text):
        if not part.startswith("table"):
            found.append(Clause("IBA", part))
            continue
        numbers = [int(n) for n in re.findall(r"\d+", part)]
        if " to " in part:
            numbers = range(numbers[0], numbers[-1] + 1)
        found += [Clause("IBA", "table %d" % n) for n in numbers]
    return found


def clauses_in(text):
    """The clauses that a piece of text names."""
    found = []
    for match in IBA.finditer(text):
        found += iba_clauses(match.group(1))
    for match in RFC.finditer(text):
        spec = "RFC " + match.group(1)
        sections = re.findall(r"\b[A-Z]\b|\d+(?:\.\d+)*", match.group(2) or "")
        found += [Clause(spec, s) for s in sections or [""]]
    return found


def scan_sources():
    """Clause -> set of files whose comments name it."""
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


def subsections(clause, tests):
    """The clauses within `clause` that tests name; of an RFC as a whole, all its sections."""
    def within(other):
        return other.spec == clause.spec and other.text.startswith(clause.text + "." if clause.text else "")
    return sorted((c for c in tests if c != clause and within(c)), key=sort_key)


def sort_key(clause):
    def pieces(text):
        return [(0, int(p), "") if p.isdigit() else (1, 0, p) for p in re.findall(r"\d+|[A-Za-z]+", text)]
    return (not clause.spec.startswith("IBA"), pieces(clause.spec), pieces(clause.text))


def untested(where, tests):
    return [c for c in sorted(where, key=sort_key)
            if c.text and c not in tests and not subsections(c, tests) and
            any(f.startswith(MUST_TEST) for f in where[c])]


def link(path):
    return "[%s](%s)" % (pathlib.PurePath(path).name, os.path.relpath(ROOT / path, DOCUMENT.parent))


def what_is_tested(name):
    """The name of a test without the clauses at its beginning, which the row names already."""
    head, colon, rest = name.partition(": ")
    return (rest if colon and clauses_in(head) else name).replace("|", "\\|").replace("<", "&lt;")


def tests_cell(clause, tests):
    """The tests that name the clause, by file; or else the subsections whose rows have some."""
    by_file = collections.defaultdict(list)
    for path, name in tests.get(clause, ()):
        by_file[path].append(what_is_tested(name))
    if by_file:
        return "<br>".join("<br>– ".join([link(path)] + sorted(names)) for path, names in sorted(by_file.items()))
    parts = subsections(clause, tests)
    return "see " + ", ".join(c.text for c in parts) if parts else ""


def document(where, tests):
    lines = ["# Conformance", "",
             "Made by `tools/conformance.py` from the clauses named in comments and in the names of tests; do not edit.",
             "IBA is the InfiniBand Architecture Specification, volume 1, with its annexes A16 (RoCE) and A17 (RoCE v2).",
             "A clause that no test names itself is tested by those of its subsections, which its row lists."]
    spec = None
    for clause in sorted(set(where) | set(tests), key=sort_key):
        if clause.spec != spec:
            spec = clause.spec
            lines += ["", "## " + spec, "", "| clause | implemented in | tests |", "|---|---|---|"]
        files = "<br>".join(link(f) for f in sorted(where.get(clause, ())))
        lines.append("| %s | %s | %s |" % (clause.text or "(whole)", files, tests_cell(clause, tests)))
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
