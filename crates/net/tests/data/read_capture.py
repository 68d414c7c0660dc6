# Prints the packets of capture files, one a line: nanoseconds, interface, length on the wire, bytes.
# Written from the specifications, to be compared with the reader and the writer of this crate.
import struct
import sys


def pcap(data):
    order = "<" if data[:4] in (b"\xd4\xc3\xb2\xa1", b"\x4d\x3c\xb2\xa1") else ">"
    magic = struct.unpack(order + "I", data[:4])[0]
    unit = {0xA1B2C3D4: 1000, 0xA1B23C4D: 1}[magic]
    at = 24
    while at < len(data):
        sec, frac, cap, wire = struct.unpack(order + "IIII", data[at : at + 16])
        yield sec * 10**9 + frac * unit, 1, wire, data[at + 16 : at + 16 + cap]
        at += 16 + cap


def options(order, data):
    found = {}
    while len(data) >= 4:
        code, size = struct.unpack(order + "HH", data[:4])
        if code == 0:
            break
        found[code] = data[4 : 4 + size]
        data = data[4 + (size + 3) // 4 * 4 :]
    return found


def pcapng(data):
    at, order, interfaces, base = 0, "<", [], 0
    while at < len(data):
        if data[at : at + 4] == b"\x0a\x0d\x0d\x0a":
            order = "<" if data[at + 8 : at + 12] == b"\x4d\x3c\x2b\x1a" else ">"
            base, interfaces = base + len(interfaces), []
        kind, size = struct.unpack(order + "II", data[at : at + 8])
        body = data[at + 8 : at + size - 4]
        assert struct.unpack(order + "I", data[at + size - 4 : at + size])[0] == size
        at += size
        if kind == 1:
            snap = struct.unpack(order + "I", body[4:8])[0]
            found = options(order, body[8:])
            exponent = found.get(9, b"\x06")[0]
            scale = (2 if exponent & 0x80 else 10) ** (exponent & 0x7F)
            shift = struct.unpack(order + "q", found.get(14, bytes(8)))[0]
            interfaces.append((snap, scale, shift))
        elif kind in (6, 2):
            first = struct.unpack(order + ("I" if kind == 6 else "H"), body[: 4 if kind == 6 else 2])[0]
            high, low, cap, wire = struct.unpack(order + "IIII", body[4:20])
            _, scale, shift = interfaces[first]
            ns = ((high << 32 | low) * 10**9) // scale + shift * 10**9
            yield ns, base + first + 1, wire, body[20 : 20 + cap]
        elif kind == 3:
            wire = struct.unpack(order + "I", body[:4])[0]
            snap = interfaces[0][0]
            cap = min(wire, snap) if snap else wire
            yield 0, base + 1, wire, body[4 : 4 + cap]


for name in sys.argv[1:]:
    with open(name, "rb") as file:
        data = file.read()
    read = pcapng if data[:4] == b"\x0a\x0d\x0d\x0a" else pcap
    for ns, interface, wire, packet in read(data):
        print(ns, interface, wire, packet.hex())
