"""Tests on the fake driver (tests/fake_cuda): runs their bodies in processes of their own, since the loader looks for
libcuda.so.1 where LD_LIBRARY_PATH said when the process started; and what such a body wants of the driver.
"""

import ctypes
import functools
import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

HERE = Path(__file__).resolve().parent


def on_fake_gpu(settings: str = "", **variables: str):
    """Makes a test of a function of a path: its body runs in a process that finds the fake driver, so set up."""

    def decorate(body):
        @functools.wraps(body)
        def test(path, build):
            folder = build / "fake_cuda"
            if not (folder / "libcuda.so.1").exists():
                pytest.skip("the fake driver is not built: cmake --build build --target fake_cuda")
            environment = {name: value for name, value in os.environ.items() if not name.startswith("HEADRACE_")}
            environment |= {"LD_LIBRARY_PATH": str(folder), "FAKE_CUDA": settings, "PYTHONPATH": str(HERE), **variables}
            call = f"tests.{body.__name__}.body(pathlib.Path({str(path)!r}))"
            script = f"import pathlib, {body.__module__} as tests; {call}"
            result = subprocess.run([sys.executable, "-c", script], env=environment, capture_output=True, text=True,
                                    timeout=120, check=False)
            assert result.returncode == 0, f"{result.returncode}\n{result.stdout}{result.stderr}"

        test.body = body
        del test.__wrapped__  # whose parameters pytest would take for fixtures
        return test

    return decorate


# ------------------------------------------------------------------------------------------------ of such a body


class Live(ctypes.Structure):
    _fields_ = [(name, ctypes.c_long) for name in (
        "allocation_count", "allocation_bytes", "registered_bytes", "pinned_count", "stream_count", "event_count",
        "module_count", "retain_count", "context_depth", "abandoned_count")]


@functools.cache
def driver() -> ctypes.CDLL:
    library = ctypes.CDLL("libcuda.so.1")
    library.fake_cuda_forked_calls.restype = ctypes.c_ulong
    library.fake_cuda_fail_nth.argtypes = [ctypes.c_ulong, ctypes.c_int]
    assert library.cuInit(0) == 0
    return library


def live() -> Live:
    found = Live()
    driver().fake_cuda_live(ctypes.byref(found))
    return found


def enter(ordinal: int) -> None:
    """Makes the primary context of a device current on this thread."""
    context = ctypes.c_void_p()
    assert driver().cuDevicePrimaryCtxRetain(ctypes.byref(context), ordinal) == 0
    assert driver().cuCtxSetCurrent(context) == 0


def read_back(address: int, nbytes: int, ordinal: int) -> bytes:
    """By the driver, not by the library under test."""
    if nbytes == 0:
        return b""
    buffer = ctypes.create_string_buffer(nbytes)
    enter(ordinal)
    assert driver().cuMemcpyDtoH_v2(buffer, ctypes.c_uint64(address), ctypes.c_size_t(nbytes)) == 0
    driver().cuCtxSetCurrent(None)
    return buffer.raw


def allocate(nbytes: int, ordinal: int) -> int:
    address = ctypes.c_uint64()
    enter(ordinal)
    assert driver().cuMemAlloc_v2(ctypes.byref(address), ctypes.c_size_t(nbytes)) == 0
    driver().cuCtxSetCurrent(None)
    return address.value


def new_stream(ordinal: int) -> int:
    stream = ctypes.c_void_p()
    enter(ordinal)
    assert driver().cuStreamCreate(ctypes.byref(stream), 1) == 0
    driver().cuCtxSetCurrent(None)
    return stream.value


def fill_later(address: int, nbytes: int, stream: int, ordinal: int) -> None:
    """When the stream comes to it."""
    enter(ordinal)
    assert driver().cuMemsetD8Async(ctypes.c_uint64(address), ctypes.c_ubyte(0x5a), ctypes.c_size_t(nbytes),
                                    ctypes.c_void_p(stream)) == 0
    driver().cuCtxSetCurrent(None)


def wait_until(what, seconds: float = 10) -> None:
    end = time.monotonic() + seconds
    while not what():
        assert time.monotonic() < end, "it did not come true"
        time.sleep(0.01)


class DLTensor(ctypes.Structure):
    _fields_ = [
        ("data", ctypes.c_void_p), ("device_type", ctypes.c_int32), ("device_id", ctypes.c_int32),
        ("rank", ctypes.c_int32), ("code", ctypes.c_uint8), ("bits", ctypes.c_uint8), ("lanes", ctypes.c_uint16),
        ("shape", ctypes.POINTER(ctypes.c_int64)), ("strides", ctypes.POINTER(ctypes.c_int64)),
        ("byte_offset", ctypes.c_uint64)]


class DLManagedTensorVersioned(ctypes.Structure):
    _fields_ = [("major", ctypes.c_uint32), ("minor", ctypes.c_uint32), ("context", ctypes.c_void_p),
                ("deleter", ctypes.c_void_p), ("flags", ctypes.c_uint64), ("tensor", DLTensor)]


def look_into(capsule: object) -> DLTensor:
    """The DLPack tensor in a capsule of either kind, borrowed."""
    get, valid = ctypes.pythonapi.PyCapsule_GetPointer, ctypes.pythonapi.PyCapsule_IsValid
    get.restype, get.argtypes = ctypes.c_void_p, [ctypes.py_object, ctypes.c_char_p]
    valid.argtypes = [ctypes.py_object, ctypes.c_char_p]
    if valid(capsule, b"dltensor"):
        return DLTensor.from_address(get(capsule, b"dltensor"))
    return DLManagedTensorVersioned.from_address(get(capsule, b"dltensor_versioned")).tensor
