#!/usr/bin/python3
"""Judges a capture (pcap or pcapng) with tools that know nothing of softrnic.

  * tshark dissects every frame; any malformed frame, warning or error fails.
  * The ICRC of every RoCE frame (v2 over IPv4 and IPv6, v1) is computed anew from the text of the
    specification with zlib's CRC, and for the first frames over IPv4 by scapy's RoCE layer too.
  * The transport header is held against the table of opcodes: extended headers complete, lengths,
    pad count, reserved bits, AckReq.

Usage: check_capture.py [options] FILE
Prints one line per fault, then `N packets, opcodes seen: ..., M ICRC checked, 0 bad`.
Exit code: 0 no fault, 1 faults, 2 wrong usage or unreadable file, 77 tshark or scapy is not installed.
"""
import argparse
import collections
import re
import shutil
import struct
import subprocess
import sys
import zlib

ETHERNET = 1
MAX_FAULTS_SHOWN = 50
SEVERITY_WARNING = 0x600000
PAYLOAD_GUESSES = ("smcr_infiniband", "smb_direct_infiniband", "rpcrdma_infiniband", "lnet_ib", "iser_infiniband",
                   "mellanox_eoib", "sdp_infiniband", "fc_infiniband", "smb_direct_iwarp", "rpcrdma_iwarp")

# Operation -> (name, bytes of extended headers of RC, payload rule). The rules: '0' none, '+' at least one
# byte, '*' any length, '4' whole words without pad (First and Middle carry a full path MTU).
OPERATIONS = {
    0x00: ("SEND_FIRST", 0, "4"), 0x01: ("SEND_MIDDLE", 0, "4"), 0x02: ("SEND_LAST", 0, "+"),
    0x03: ("SEND_LAST_IMM", 4, "+"), 0x04: ("SEND_ONLY", 0, "*"), 0x05: ("SEND_ONLY_IMM", 4, "*"),
    0x06: ("WRITE_FIRST", 16, "4"), 0x07: ("WRITE_MIDDLE", 0, "4"), 0x08: ("WRITE_LAST", 0, "+"),
    0x09: ("WRITE_LAST_IMM", 4, "+"), 0x0A: ("WRITE_ONLY", 16, "*"), 0x0B: ("WRITE_ONLY_IMM", 20, "*"),
    0x0C: ("READ_REQUEST", 16, "0"), 0x0D: ("READ_RESP_FIRST", 4, "4"), 0x0E: ("READ_RESP_MIDDLE", 0, "4"),
    0x0F: ("READ_RESP_LAST", 4, "+"), 0x10: ("READ_RESP_ONLY", 4, "*"), 0x11: ("ACKNOWLEDGE", 4, "0"),
    0x12: ("ATOMIC_ACK", 12, "0"), 0x13: ("CMP_SWAP", 28, "0"), 0x14: ("FETCH_ADD", 28, "0"),
    0x16: ("SEND_LAST_INV", 4, "+"), 0x17: ("SEND_ONLY_INV", 4, "*"),
}
UC_OPERATIONS = range(0x00, 0x0C)
UD_OPERATIONS = (0x04, 0x05)


def opcode_table():
    """opcode byte -> (name, bytes of extended headers, payload rule)"""
    table = {}
    for op, (name, eth, rule) in OPERATIONS.items():
        table[op] = ("RC_" + name, eth, rule)
        if op in UC_OPERATIONS:
            table[0x20 | op] = ("UC_" + name, eth, rule)
        if op in UD_OPERATIONS:
            table[0x60 | op] = ("UD_" + name, eth + 8, rule)
    table[0x81] = ("CNP", 16, "0")
    return table


OPCODES = opcode_table()


class Roce:
    """Where the parts of a RoCE frame lie; the offsets count from the start of the frame."""

    def __init__(self, kind, l3, bth, end):
        self.kind, self.l3, self.bth, self.end = kind, l3, bth, end  # end: behind the ICRC


def dissect(frame):
    """Roce of a frame, None when it carries something else, or a string that says what is wrong."""
    if len(frame) < 14:
        return "no Ethernet header"
    l3, ethertype = 14, struct.unpack_from("!H", frame, 12)[0]
    if ethertype == 0x8100:
        if len(frame) < 18:
            return "no VLAN tag"
        l3, ethertype = 18, struct.unpack_from("!H", frame, 16)[0]
    size = len(frame) - l3
    if ethertype == 0x8915:
        if size < 40:
            return "no GRH"
        paylen, nxthdr = struct.unpack_from("!HB", frame, l3 + 4)
        if frame[l3] >> 4 != 6 or nxthdr != 0x1B or paylen > size - 40:
            return "GRH wrong"
        return Roce("v1", l3, l3 + 40, l3 + 40 + paylen)
    if ethertype == 0x0800 and size >= 20 and frame[l3 + 9] == 17:
        ihl = (frame[l3] & 15) * 4
        total, fragment = struct.unpack_from("!H2xH", frame, l3 + 2)
        if size < ihl + 8 or struct.unpack_from("!H", frame, l3 + ihl + 2)[0] != 4791:
            return None
        if ihl != 20 or fragment & 0x3FFF:
            return "RoCE v2 with IPv4 options or fragmented"
        if not fragment & 0x4000:
            return "RoCE v2 without DF"
        udp, end, kind = l3 + 20, l3 + total, "v2 IPv4"
    elif ethertype == 0x86DD and size >= 48 and frame[l3 + 6] == 17:
        if struct.unpack_from("!H", frame, l3 + 42)[0] != 4791:
            return None
        udp, end, kind = l3 + 40, l3 + 40 + struct.unpack_from("!H", frame, l3 + 4)[0], "v2 IPv6"
    else:
        return None
    length, checksum = struct.unpack_from("!HH", frame, udp + 4)
    if end > len(frame) or udp + length != end:
        return "UDP length %d does not match the IP length" % length
    if checksum != 0:
        return "UDP checksum is not 0"
    return Roce(kind, l3, udp + 8, end)


def icrc(frame, r):
    """ICRC as stored, by IBA 7.8.1, A16 and A17."""
    m = bytearray(frame[r.l3:r.end - 4])
    if r.kind == "v2 IPv4":
        m[1] = m[8] = m[10] = m[11] = m[26] = m[27] = 0xFF
    else:
        m[0] |= 0x0F
        m[1] = m[2] = m[3] = m[7] = 0xFF
        if r.kind == "v2 IPv6":
            m[46] = m[47] = 0xFF
    m[r.bth - r.l3 + 4] = 0xFF
    return struct.pack("<I", zlib.crc32(b"\xff" * 8 + bytes(m)))


def transport_faults(frame, r):
    """What is wrong with the BTH and the lengths."""
    size = r.end - r.bth - 4
    if size < 12:
        return ["no room for a BTH"]
    opcode, flags, pkey = struct.unpack_from("!BBH", frame, r.bth)
    if opcode not in OPCODES:
        return ["opcode 0x%02x unknown" % opcode]
    name, eth, rule = OPCODES[opcode]
    pad, payload = flags >> 4 & 3, size - 12 - eth
    faults = []
    if size % 4:
        faults.append("not a multiple of 4 bytes")
    if payload < pad:
        return faults + ["too short for its headers and pad"]
    payload -= pad
    if rule == "0" and payload + pad or rule == "+" and payload == 0 or rule == "4" and (payload == 0 or pad):
        faults.append("%d bytes of payload and %d of pad" % (payload, pad))
    if pad and any(frame[r.end - 4 - pad:r.end - 4]):
        faults.append("pad is not zero")
    if flags & 15:
        faults.append("TVer is not 0")
    if frame[r.bth + 4] & 0x3F or frame[r.bth + 8] & 0x7F:
        faults.append("reserved bits are set")
    if pkey & 0x7FFF == 0:
        faults.append("P_Key invalid")
    if opcode & 0xE0 in (0x20, 0x60) and frame[r.bth + 8] & 0x80:
        faults.append("AckReq on UC or UD")
    if opcode & 0xE0 == 0 and 0x0D <= opcode <= 0x12 and (frame[r.bth + 8] & 0x80 or flags & 0x80):
        faults.append("AckReq or SE on a response")
    return [name + ": " + f for f in faults]


def scapy_icrc(frame):
    """ICRC as stored by scapy's RoCE layer (RoCE v2 over IPv4 only)."""
    packet = Ether(frame)
    return packet[BTH].compute_icrc(bytes(packet[BTH]))


def run_tshark(path, arguments):
    """Output lines of tshark. Guesses about application protocols in payloads are off: they are often wrong."""
    guesses = list(PAYLOAD_GUESSES)
    while True:
        cmd = ["tshark", "-n", "-r", path] + arguments
        for g in guesses:
            cmd += ["--disable-heuristic", g]
        run = subprocess.run(cmd, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, errors="replace")
        if run.returncode == 0:
            return run.stdout.splitlines()
        unknown = re.search(r"No such protocol (\S+), can't disable", run.stderr)
        if unknown is None or unknown.group(1) not in guesses:
            print("tshark: " + run.stderr.strip())
            sys.exit(2)
        guesses.remove(unknown.group(1))  # another version of tshark


def expert_faults(path):
    """Warnings, errors and malformed frames that tshark reports: [(frame number, text)]"""
    # RoCE v2 sends the UDP checksum 0 over IPv6 too.
    arguments = ["-o", "udp.ignore_ipv6_zero_checksum:TRUE", "-Y", "_ws.expert || _ws.malformed",
                 "-T", "fields", "-E", "separator=/t", "-E", "aggregator=;"]
    for f in ("frame.number", "_ws.expert.severity", "_ws.expert.message", "_ws.malformed"):
        arguments += ["-e", f]
    out = []
    for line in run_tshark(path, arguments):
        number, severity, message, malformed = (line.split("\t") + [""] * 4)[:4]
        worst = max([int(s, 0) for s in severity.split(";") if s] or [0])
        if malformed or worst >= SEVERITY_WARNING:
            out.append((int(number), "tshark: " + (message or malformed or "malformed")))
    return out


def names_of(required):
    """Opcode names of a --require-opcodes list: names, numbers, or RC, UC, UD for all of a transport."""
    names = []
    for item in required.split(","):
        item = item.strip()
        if item in ("RC", "UC", "UD"):
            names += [n for n, _, _ in OPCODES.values() if n.startswith(item + "_")]
        elif item[:1].isdigit():
            names.append(OPCODES[int(item, 0)][0])
        elif item in [n for n, _, _ in OPCODES.values()]:
            names.append(item)
        elif item:
            sys.exit("check_capture: unknown opcode " + item)
    return names


class Judge:
    def __init__(self, path):
        self.path = path
        self.packets = self.truncated = self.checked = self.scapy_checked = self.bad_icrc = 0
        self.seen = collections.Counter()
        self.kinds = collections.Counter()
        self.faults = []

    def fault(self, number, text):
        self.faults.append("frame %d: %s" % (number, text))

    def frame(self, number, frame, with_scapy):
        r = dissect(frame)
        if r is None:
            return
        if isinstance(r, str):
            self.fault(number, r)
            return
        self.kinds[r.kind] += 1
        for text in transport_faults(frame, r):
            self.fault(number, text)
        if r.end - r.bth < 16:
            return
        self.seen[OPCODES.get(frame[r.bth], ("0x%02x" % frame[r.bth],))[0]] += 1
        stored = bytes(frame[r.end - 4:r.end])
        results = [("computed", icrc(frame, r))]
        if with_scapy and r.kind == "v2 IPv4":
            results.append(("scapy has", scapy_icrc(bytes(frame[:r.end]))))
            self.scapy_checked += 1
        self.checked += 1
        wrong = ["%s %s" % (who, value.hex()) for who, value in results if value != stored]
        if wrong:
            self.bad_icrc += 1
            self.fault(number, "ICRC %s, %s" % (stored.hex(), ", ".join(wrong)))

    def read(self, scapy_limit):
        for frame, meta in RawPcapReader(self.path):
            self.packets += 1
            if getattr(meta, "linktype", None) not in (None, ETHERNET):
                continue
            if meta.wirelen is not None and meta.wirelen > len(frame):
                self.truncated += 1
                continue
            self.frame(self.packets, frame, self.scapy_checked < scapy_limit)


def main():
    parser = argparse.ArgumentParser(description="Judges a capture with tshark, scapy and zlib.")
    parser.add_argument("file")
    parser.add_argument("--require-opcodes", default="", metavar="LIST",
                        help="names (RC_SEND_ONLY), numbers or RC, UC, UD; each must have been seen")
    parser.add_argument("--min-packets", type=int, default=1, metavar="N", help="fail with fewer packets (1)")
    parser.add_argument("--scapy-limit", type=int, default=1000, metavar="N",
                        help="frames that scapy, which is slow, looks at (1000)")
    args = parser.parse_args()
    required = names_of(args.require_opcodes)

    judge = Judge(args.file)
    try:
        judge.read(args.scapy_limit)
    except (OSError, EOFError, Scapy_Exception) as e:
        print("check_capture: %s: %s" % (args.file, e))
        return 2
    for number, text in expert_faults(args.file):
        judge.fault(number, text)
    for name in required:
        if judge.seen[name] == 0:
            judge.faults.append("opcode %s was not seen" % name)
    if judge.packets < args.min_packets:
        judge.faults.append("only %d packets" % judge.packets)

    for text in judge.faults[:MAX_FAULTS_SHOWN]:
        print(text)
    if len(judge.faults) > MAX_FAULTS_SHOWN:
        print("... %d more" % (len(judge.faults) - MAX_FAULTS_SHOWN))
    print("%d packets%s, opcodes seen: %s, %d ICRC checked (%d by scapy too), %d bad" % (
        judge.packets, " (%d truncated)" % judge.truncated if judge.truncated else "",
        " ".join("%s:%d" % item for item in sorted(judge.seen.items())) or "none",
        judge.checked, judge.scapy_checked, judge.bad_icrc))
    return 1 if judge.faults else 0


if __name__ == "__main__":
    try:
        import logging
        logging.getLogger("scapy").setLevel(logging.ERROR)
        from scapy.contrib.roce import BTH
        from scapy.error import Scapy_Exception
        from scapy.layers.l2 import Ether
        from scapy.utils import RawPcapReader
    except ImportError as missing:
        print("check_capture: scapy is needed (python3-scapy): %s" % missing)
        sys.exit(77)
    if shutil.which("tshark") is None:
        print("check_capture: tshark is needed")
        sys.exit(77)
    sys.exit(main())
