"""Counts calls of a function in a process that runs already. Arguments: the library, an object with a
program `count`, libskep_preload.so, a process id, a pattern, and how many calls are waited for."""

import ctypes as c
import struct
import sys
import time

skep = c.CDLL(sys.argv[1])
skep.skep_last_error.restype = c.c_char_p


def check(answer):
    if answer < 0:
        raise OSError(-answer, skep.skep_last_error().decode())
    return answer


def handle(function, *arguments):
    out = c.c_void_p()
    check(function(*arguments, c.byref(out)))
    return out


class Target(c.Structure):
    _fields_ = [("pattern", c.c_char_p), ("cookie", c.c_uint64)]


class AttachOptions(c.Structure):
    _fields_ = [("targets", c.POINTER(Target)), ("target_count", c.c_uint64)]
    _fields_ += [("exclude", c.c_char_p), ("cookie", c.c_uint64), ("flags", c.c_uint64)]


def entries(counts):
    """The elements of a map with keys and values of eight bytes."""
    key, value, size = c.create_string_buffer(8), c.c_uint64(), c.c_size_t(8)
    last = None
    while skep.skep_map_next_key(counts, last, c.c_size_t(8 if last else 0), key, c.byref(size)) == 0:
        last = key
        found = skep.skep_map_lookup(counts, key, c.c_size_t(8), c.byref(value), c.c_size_t(8), c.c_uint64(0))
        check(found)
        yield struct.unpack("=Q", key.raw)[0], value.value


ATTACH_OTHERS = 1
library, path, agent, pid, pattern, wanted = sys.argv[1:]
session = handle(skep.skep_session_scratch)
obj = handle(skep.skep_object_open, session, path.encode())
program = handle(skep.skep_object_program, obj, b"count")
counts = handle(skep.skep_object_map, obj, b"counts")
options = AttachOptions(c.pointer(Target(pattern.encode(), 0)), 1, None, 0, ATTACH_OTHERS)
link = handle(skep.skep_program_attach, program, c.byref(options), c.c_size_t(c.sizeof(options)))
try:
    process = handle(
        skep.skep_process_attach, session, c.c_uint32(int(pid)), c.byref(link), c.c_size_t(1), agent.encode()
    )
except OSError as e:
    sys.exit(e.strerror)
while sum(n for _, n in entries(counts)) < int(wanted) and check(skep.skep_process_is_running(process)):
    time.sleep(0.01)
check(skep.skep_process_leave(process))
for address, n in entries(counts):
    print(f"{address:#x}: {n} calls")
check(skep.skep_link_detach(link, 0))
for kind, value in [("map", counts), ("program", program), ("object", obj), ("session", session)]:
    check(getattr(skep, f"skep_{kind}_free")(value))
