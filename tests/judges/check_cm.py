#!/usr/bin/python3
"""Judges the messages of communication management that make_cm_frames wrote: what tshark reads in each field of REQ,
REP, RTU, REJ, DREQ and DREP is what was meant. The other messages it only knows as MADs. It reads the flow label and
the packet rate of a REQ's paths from the wrong bytes (tshark 4.0 takes 12 bits of the label): they are left out.

Usage: check_cm.py FILE
Exit code: 0 all as expected, 1 not, 2 unreadable file, 77 tshark is not installed or knows nothing of the CM.
"""
import shutil
import subprocess
import sys

ATTRIBUTES = {0x10: "REQ", 0x11: "MRA", 0x12: "REJ", 0x13: "REP", 0x14: "RTU", 0x15: "DREQ", 0x16: "DREP",
              0x17: "SIDR_REQ", 0x18: "SIDR_REP", 0x19: "LAP", 0x1A: "APR"}
ORDER = ["REQ", "MRA", "REP", "RTU", "DREQ", "DREP", "REQ", "REJ", "REQ", "REJ", "SIDR_REQ", "SIDR_REP", "LAP", "APR"]

MAD = {"infiniband.mad.baseversion": 1, "infiniband.mad.mgmtclass": 7, "infiniband.mad.classversion": 2,
       "infiniband.mad.method": 3, "infiniband.mad.status": 0, "infiniband.mad.attributemodifier": 0,
       "infiniband.bth.opcode": 100, "infiniband.bth.destqp": 1, "infiniband.deth.srcqp": 1,
       "infiniband.deth.q_key": 0x80010000}
REQ = {"localcaguid": 0xA1A2A3A4A5A6A7A8, "localqkey": 0, "localqpn": 0x123456, "responderres": 3, "localeecn": 0,
       "initdepth": 4, "remoteeecn": 0, "remoteresptout": 20, "transpsvctype": 0, "e2eflowctrl": 0,
       "startpsn": 0x111111, "localresptout": 19, "retrcount": 7, "pkey": 0xFFFF, "pppmtu": 5, "rdcexist": 0,
       "rnrretrcount": 6, "maxcmretr": 15, "srq": 1, "ext_transport": 0, "prim_locallid": 0xFFFF,
       "prim_remotelid": 0xFFFF, "prim_localgid_ipv4": "10.0.0.1", "prim_remotegid_ipv4": "10.0.0.2",
       "prim_tfcclass": 0x68, "prim_hoplim": 64, "prim_sl": 3,
       "prim_subnetlocal": 0, "prim_localacktout": 17, "alt_locallid": 0, "alt_remotelid": 0, "alt_hoplim": 0,
       "alt_localacktout": 0, "ip_cm.majv": 0, "ip_cm.minv": 0, "ip_cm.ipv": 4, "ip_cm.sport": 0x1234,
       "ip_cm.sip4": "10.0.0.1", "ip_cm.dip4": "10.0.0.2", "ip_cm.private": b"hello"}
REP = {"localqkey": 0, "localqpn": 0x654321, "localeecn": 0, "startpsn": 0x222222, "respres": 5, "initdepth": 6,
       "tgtackdelay": 15, "failoveracc": 1, "e2eflowctrl": 0, "rnrretrcount": 7, "srq": 1, "reserved": 0,
       "localcaguid": 0xB1B2B3B4B5B6B7B8, "private": b"accepted"}
SERVICE = {"serviceid.protocol": 6, "serviceid.dport": 7471}
NO_SERVICE = {"serviceid.protocol": 6, "serviceid.dport": 7472}
REJ_NO_SERVICE = {"localcommid": 0, "msgrej": 0, "rejinfolen": 0, "reason": 8}
REJ_CONSUMER = {"localcommid": 0, "msgrej": 0, "rejinfolen": 2, "reason": 28, "ari": b"\xde\xad", "private": b"no"}

EXPECTED = [("req", {**REQ, **SERVICE}), None, ("rep", REP), ("rtu", {"private": b"ready"}),
            ("dreq", {"private": b"bye"}), ("drsp", {"private": b"farewell"}), ("req", {**REQ, **NO_SERVICE}),
            ("rej", REJ_NO_SERVICE), ("req", {**REQ, **SERVICE}), ("rej", REJ_CONSUMER), None, None, None, None]
# Fields that hold the communication IDs: message number -> (field, (message, field) it must equal).
SAME = {2: [("infiniband.cm.rep.remotecommid", (0, "infiniband.cm.req"))],
        3: [("infiniband.cm.rtu.localcommid", (0, "infiniband.cm.req")),
            ("infiniband.cm.rtu.remotecommid", (2, "infiniband.cm.rep"))],
        4: [("infiniband.cm.dreq.localcommid", (0, "infiniband.cm.req")),
            ("infiniband.cm.dreq.remotecommid", (2, "infiniband.cm.rep")),
            ("infiniband.cm.req.remoteqpneecn", (2, "infiniband.cm.rep.localqpn"))],
        5: [("infiniband.cm.drsp.localcommid", (2, "infiniband.cm.rep")),
            ("infiniband.cm.drsp.remotecommid", (0, "infiniband.cm.req"))],
        7: [("infiniband.cm.rej.remotecommid", (6, "infiniband.cm.req"))],
        9: [("infiniband.cm.rej.remotecommid", (8, "infiniband.cm.req"))]}


def run_tshark(arguments):
    run = subprocess.run(["tshark"] + arguments, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    if run.returncode != 0:
        print("tshark: " + run.stderr.strip())
        sys.exit(2)
    return run.stdout


def agrees(shown, want):
    """Whether a field that tshark shows has the value."""
    if isinstance(want, bytes):
        got = bytes.fromhex(shown.replace(":", ""))
        return got[:len(want)] == want and not any(got[len(want):])
    if isinstance(want, int):
        return shown != "" and int(shown, 0) == want
    return shown == want


def main():
    if len(sys.argv) != 2:
        print(__doc__)
        return 2
    if shutil.which("tshark") is None:
        print("check_cm: tshark is needed")
        return 77
    known = {line.split("\t")[2] for line in run_tshark(["-G", "fields"]).splitlines() if line.startswith("F\t")}
    wanted = [None if e is None else {"infiniband.cm.%s.%s" % (e[0], f): v for f, v in e[1].items()} for e in EXPECTED]
    fields = sorted(set(MAD) | {"infiniband.mad.attributeid", "_ws.malformed"} | {f for e in wanted if e for f in e} |
                    {f for rules in SAME.values() for f, _ in rules} | {"infiniband.cm.req", "infiniband.cm.rep"})
    missing = [f for f in fields if f not in known and not f.startswith("_ws")]
    if len(missing) > len(fields) // 2:
        print("check_cm: this tshark does not know the CM")
        return 77
    fields = [f for f in fields if f not in missing]
    arguments = ["-n", "-r", sys.argv[1], "-T", "fields", "-E", "separator=/t", "-E", "occurrence=f"]
    for f in fields:
        arguments += ["-e", f]
    frames = [dict(zip(fields, line.split("\t"))) for line in run_tshark(arguments).splitlines()]

    faults = []
    names = [ATTRIBUTES.get(int(f["infiniband.mad.attributeid"] or "0", 0), "?") for f in frames]
    if names != ORDER:
        faults.append("messages %s, not %s" % (" ".join(names), " ".join(ORDER)))
    checked = 0
    for number, (frame, expected) in enumerate(zip(frames, wanted)):
        if frame["_ws.malformed"]:
            faults.append("frame %d: malformed" % (number + 1))
        values = {**MAD, **(expected or {})}
        for other, (message, field) in SAME.get(number, []):
            values[other] = int(frames[message][field], 0)
        for field, want in values.items():
            if field not in frame:
                continue
            checked += 1
            if not agrees(frame[field], want):
                faults.append("frame %d (%s): %s is %r, not %r" % (number + 1, names[number], field, frame[field], want))
    for text in faults:
        print(text)
    print("%d messages, %d fields checked, %d wrong%s" % (
        len(frames), checked, len(faults), ", not known to this tshark: " + " ".join(missing) if missing else ""))
    return 1 if faults else 0


if __name__ == "__main__":
    sys.exit(main())
