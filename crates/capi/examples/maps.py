"""Uses libskep from Python: a map, and a test run. Arguments: the library, an object."""

import ctypes as c
import sys

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


class TestRun(c.Structure):
    _fields_ = [(name, c.c_void_p) for name in ("data_in", "data_out", "ctx_in", "ctx_out")]
    _fields_ += [
        (name, c.c_uint32)
        for name in ("data_size_in", "data_size_out", "ctx_size_in", "ctx_size_out", "repeat", "retval")
    ]
    _fields_ += [("duration_ns", c.c_uint64)]


session = handle(skep.skep_session_scratch)
obj = handle(skep.skep_object_open, session, sys.argv[2].encode())
waiting = handle(skep.skep_object_map, obj, b"waiting")
check(skep.skep_map_update(waiting, None, c.c_size_t(0), c.byref(c.c_uint32(9)), c.c_size_t(4), c.c_uint64(0)))
program = handle(skep.skep_object_program, obj, b"first_bytes")
runner = handle(skep.skep_program_runner, program, 0)
packet = c.create_string_buffer(b"\x09" + bytes(63), 64)
for _ in range(2):
    run = TestRun(data_in=c.addressof(packet), data_size_in=64)
    check(skep.skep_runner_test_run(runner, c.byref(run), c.c_size_t(c.sizeof(run))))
    print("verdict", run.retval)
try:
    handle(skep.skep_object_map, obj, b"nothing")
except OSError as e:
    print(e.errno, e.strerror)
for kind, value in [("runner", runner), ("program", program), ("map", waiting), ("object", obj), ("session", session)]:
    check(getattr(skep, f"skep_{kind}_free")(value))
