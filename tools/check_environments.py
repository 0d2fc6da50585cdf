"""Runs the tests of loads and of the command where less is allowed than usual, and holds `headrace doctor` and
`headrace load` to saying so: io_uring forbidden (EPERM) and hidden (ENOSYS) by seccomp, or only registering with it,
64 descriptors, an unprivileged user with 8 MiB of locked memory, all of them without a driver of GPUs where the machine
has none, and GPUs of the fake driver. The tests of the command bring that along where they need it.

    check_environments.py BUILD

The last line is "N environments passed, N failed".
"""

import ctypes
import importlib.metadata
import json
import os
import re
import shutil
import struct
import subprocess
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

PROGRAMS = [
    "test_capability", "test_catalog", "test_dlpack", "test_files", "test_io", "test_load", "test_load_faults",
    "test_load_slices", "test_load_stop", "test_window",
]
GPU_PROGRAMS = ["test_gpu_load", "test_load_faults"]
SIMULATED_LOADS = 300
NOBODY = 65534
LOCKED_BYTES = 8 << 20
# Tests of the command that move no bytes, or whose way of moving them others take too.
ALIKE = ["cast", "gpu", "ls", "plan", "probe", "shard", "trace", "usage"]
SHARDS = 100
COLD_BYTES = 32 << 20  # much more than the kernel reads ahead when the header is read


def has_driver() -> bool:
    """Whether this machine has a driver of GPUs: then no environment here can be without one."""
    try:
        ctypes.CDLL("libcuda.so.1")
    except OSError:
        return False
    return True


def copy_package(name: str, folder: Path) -> None:
    """An installed Python package without what it depends on, from where everybody can read it."""
    for file in importlib.metadata.distribution(name).files or []:
        if ".." not in file.parts and "__pycache__" not in file.parts:
            (folder / file).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(file.locate(), folder / file)


def write_model(folder: Path, shards: int, size: int) -> None:
    folder.mkdir()
    header = json.dumps({"t": {"dtype": "U8", "shape": [size], "data_offsets": [0, size]}})
    for i in range(shards):
        text = header.replace('"t"', f'"t{i}"').encode()
        (folder / f"{i:03}.safetensors").write_bytes(struct.pack("<Q", len(text)) + text + bytes(size))


def evict(folder: Path) -> None:
    for path in folder.iterdir():
        with path.open("rb") as file:
            os.fsync(file.fileno())
            os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)


class Place:
    """A copy of what runs, readable for everybody, and a checkpoint of many files that belong to us."""

    def __init__(self, folder: Path, build: Path):
        self.folder, self.build = folder, folder / "build"
        self.build.mkdir()
        for name in {"headrace", "no_io_uring", "test_simulator", *PROGRAMS, *GPU_PROGRAMS}:
            shutil.copy(build / name, self.build)
        shutil.copytree(build / "fake_cuda", self.build / "fake_cuda")
        shutil.copytree("tests/cli", folder / "tests/cli", ignore=shutil.ignore_patterns("__pycache__", "test_bench*"))
        shutil.copytree("docs/man", folder / "docs/man")
        for name in ["pytest", "pluggy", "iniconfig", "packaging", "pygments"]:
            copy_package(name, folder / "packages")
        self.model = folder / "model"
        write_model(self.model, SHARDS, 100_000)
        subprocess.run(["chmod", "-R", "a+rX", folder], check=True)


class Environment:
    """How a program is started there: what stands before its command line, and as whom."""

    def __init__(self, place: Place, name: str, prefix: list[str], user: int | None = None, gpu: str | None = None):
        self.place, self.name, self.prefix = place, name, prefix
        self.scratch = place.folder / name.replace(" ", "-")
        self.scratch.mkdir()
        if user is not None:
            os.chown(self.scratch, user, user)
        self.variables = {
            "PATH": os.environ["PATH"], "TMPDIR": str(self.scratch), "HOME": str(self.scratch),
            "HEADRACE_BIN": str(place.build / "headrace"), "PYTHONPATH": str(place.folder / "packages"),
            "PYTHONDONTWRITEBYTECODE": "1", "LANG": "C.UTF-8",
        }
        self.has_gpu = gpu is not None
        if gpu is not None:
            self.variables |= {"LD_LIBRARY_PATH": str(place.build / "fake_cuda"), "FAKE_CUDA": gpu}

    def run(self, *arguments: object) -> str:
        command = [*self.prefix, *map(str, arguments)]
        result = subprocess.run(command, capture_output=True, text=True, timeout=300, check=False, errors="replace",
                                env=self.variables, cwd=self.scratch)
        if result.returncode != 0:
            raise AssertionError(f"{' '.join(command)}: {result.returncode}\n{result.stdout}{result.stderr}"[-6000:])
        return result.stdout

    def json(self, *arguments: object) -> dict:
        return json.loads(self.run(self.place.build / "headrace", *arguments, "--json"))

    def capability(self, name: str) -> dict:
        return next(c for c in self.json("doctor")["capabilities"] if c["name"] == name)

    def load(self) -> dict:
        report = self.json("load", self.place.model)
        assert (report["tensors"], report["bytes"]) == (SHARDS, SHARDS * 100_000), report
        return report

    def run_tests(self) -> None:
        for name in GPU_PROGRAMS if self.has_gpu else PROGRAMS:
            self.run(self.place.build / name)
        self.run(self.place.build / "test_simulator", 1, SIMULATED_LOADS)
        if self.has_gpu:  # tests of the command set it up themselves
            return
        folder = self.place.folder / "tests/cli"
        self.run("/usr/bin/python3", "-m", "pytest", "-q", "-p", "no:cacheprovider", "--tb=short", folder,
                 *(f"--ignore={folder}/test_command_{name}.py" for name in ALIKE))


def expect_reason(report: dict, uring_usable: bool) -> bool:
    """io_uring is spoken of where it is missed: not when the page cache holds the files. Returns whether it does."""
    reason = report["route_reason"]
    held = re.match(r"the page cache holds (\d+) % of the files", reason)
    hot = held is not None and int(held[1]) >= 90
    assert held or reason.startswith("cannot tell what the page cache holds: "), report
    assert ("; io_uring is not usable" in reason) == (not hot and not uring_usable), report
    return hot


def expect_no_uring(environment: Environment, reason: str) -> None:
    capability, cold = environment.capability("io_uring"), environment.scratch / "cold"
    assert not capability["usable"] and reason in capability["detail"], capability
    write_model(cold, 1, COLD_BYTES)
    evict(cold)
    report = environment.json("load", cold)
    assert (report["route"], report["bytes"]) == ("pread", COLD_BYTES), report
    in_memory = subprocess.check_output(["stat", "-f", "-c", "%T", cold], text=True).strip() in ("tmpfs", "ramfs")
    assert expect_reason(report, uring_usable=False) == in_memory, report


def expect_no_fixed(environment: Environment, refused: str) -> None:
    """Where io_uring is usable and the model is not in memory: registered buffers are said to be refused."""
    text = environment.json("doctor", environment.place.model)["storage"]
    if environment.capability("io_uring")["usable"] and not text.startswith("buffered"):
        assert text.endswith(f"; fixed buffers: refused ({refused})"), text


def expect_nothing_registered(environment: Environment) -> None:
    expect_no_fixed(environment, "errno 1")
    environment.load()


def expect_forbidden(environment: Environment) -> None:
    expect_no_uring(environment, "a seccomp profile or security module forbids it")


def expect_hidden(environment: Environment) -> None:
    expect_no_uring(environment, "or a container profile hides it")


def expect_few_files(environment: Environment) -> None:
    assert "limit 64 " in environment.capability("open_files")["detail"]
    assert "at most 32 files open; a higher limit (ulimit -n) helps" in environment.capability("open_files")["detail"]
    assert environment.load()["files"] == SHARDS


def expect_unprivileged(environment: Environment) -> None:
    """The checkpoint belongs to another user: recent kernels do not say what the page cache holds of it."""
    text = environment.run("sh", "-c", "ulimit -l; id -u")
    assert text.split() == [str(LOCKED_BYTES >> 10), str(os.getuid() or NOBODY)], text
    capability, report = environment.capability("io_uring"), environment.load()
    expect_reason(report, capability["usable"])
    expect_no_fixed(environment, "limit of locked memory 8 MiB")


def expect_no_driver(environment: Environment) -> None:
    capability, report = environment.capability("cuda"), environment.load()
    assert not capability["usable"] and "libcuda.so.1" in capability["detail"], capability
    assert (report["device"], environment.json("doctor")["devices"]) == ("cpu", []), report


def expect_gpu(environment: Environment) -> None:
    capability, report = environment.capability("cuda"), environment.load()
    assert capability["usable"] and capability["detail"].startswith("Fake H100, "), capability
    assert report["device"] == "cuda:0" and report["bytes_sent"] == report["bytes"], report
    assert report["staging"] == "registered huge pages", report
    assert environment.json("load", "--device", "cpu", environment.place.model)["device"] == "cpu"


def expect_gpu_that_registers_nothing(environment: Environment) -> None:
    report = environment.load()
    assert report["route"] == "pread" and report["device"] == "cuda:0", report
    assert report["staging"].startswith("pinned memory of the driver: cuMemHostRegister: "), report


def environments(place: Place) -> list:
    """Each with what it must say. Where we are not root, we are the unprivileged user."""
    no_uring, limit = str(place.build / "no_io_uring"), "prlimit"
    root = os.getuid() == 0
    unprivileged = [limit, f"--memlock={LOCKED_BYTES}:{LOCKED_BYTES}"]
    if root:
        unprivileged += ["setpriv", f"--reuid={NOBODY}", f"--regid={NOBODY}", "--clear-groups", "--inh-caps=-all",
                         "--bounding-set=-all", "--no-new-privs"]
    return [
        (Environment(place, "io_uring forbidden", [no_uring, "EPERM"]), expect_forbidden),
        (Environment(place, "io_uring hidden", [no_uring, "ENOSYS"]), expect_hidden),
        (Environment(place, "registering forbidden", [no_uring, "REGISTER"]), expect_nothing_registered),
        (Environment(place, "64 descriptors", [limit, "--nofile=64:64"]), expect_few_files),
        (Environment(place, "unprivileged", unprivileged, NOBODY if root else None), expect_unprivileged),
        (Environment(place, "GPU", [], gpu="devices=2"), expect_gpu),
        (Environment(place, "GPU that registers nothing", [no_uring, "EPERM"], gpu="register=refuse"),
         expect_gpu_that_registers_nothing),
    ]


def check(environment: Environment, expect) -> bool:
    try:
        expect(environment)
        if not environment.has_gpu and not has_driver():
            expect_no_driver(environment)
        environment.run_tests()
    except (AssertionError, subprocess.TimeoutExpired) as error:
        print(f"{environment.name}: FAILED\n{error}", flush=True)
        return False
    print(f"{environment.name}: ok", flush=True)
    return True


def main() -> int:
    with tempfile.TemporaryDirectory() as folder, ThreadPoolExecutor(max_workers=2) as pool:
        place = Place(Path(folder), Path(sys.argv[1]))
        verdicts = list(pool.map(lambda pair: check(*pair), environments(place)))
    print(f"{verdicts.count(True)} environments passed, {verdicts.count(False)} failed")
    return int(not all(verdicts))


if __name__ == "__main__":
    sys.exit(main())
