"""The sections of run.py that want a GPU: which checkpoints, and what of headrace is measured on them."""
import argparse
import ctypes
import os
import sys
from pathlib import Path

from runner import HERE, make_model, run_json, touch_memory

THREAD_COUNTS = [4, 8, 12, 16, 24, 32, 64, 128]
CORE_COUNTS = [2, 4, 8]


def has_device() -> bool:
    """Whether there is a driver that knows a device, without a context on it."""
    count = ctypes.c_int(0)
    try:
        driver = ctypes.CDLL("libcuda.so.1")
    except OSError:
        return False
    return driver.cuInit(0) == 0 and driver.cuDeviceGetCount(ctypes.byref(count)) == 0 and count.value > 0


def bench_gpu(options: argparse.Namespace, folder: Path, models: list[Path], subjects: list[str],
              *more: object) -> dict:
    command = [options.build / "bench_gpu", "--pairs", options.pairs, *more]
    for subject in subjects:
        command += ["--subject", subject]
    return run_json([*command, *models], folder)


def large_model(options: argparse.Namespace, folder: Path) -> Path:
    model = make_model(folder, "model", options.gib, 4)
    touch_memory(2)
    return model


def hot(options: argparse.Namespace, folder: Path) -> dict:
    """Whose memory, kept and new loaders; and a model of half a gigabyte."""
    model = large_model(options, folder)
    half = make_model(folder, "half", min(0.46, options.gib), 1, "--hidden", "1024")
    subjects = ["arena,kept", "arena,new", "each,kept", "into,kept"]
    return {"large": bench_gpu(options, folder, [model], subjects, "--limits"),
            "half_gb": bench_gpu(options, folder, [half], ["arena,kept", "each,kept", "arena,new"])}


def threads(options: argparse.Namespace, folder: Path) -> dict:
    """All thread counts against the best ruler, and few threads against a ruler of as many."""
    model = large_model(options, folder)
    result = {"all": bench_gpu(options, folder, [model], [f"arena,kept,{count}" for count in THREAD_COUNTS])}
    for count in (4, 8):
        few = bench_gpu(options, folder, [model], [f"arena,kept,{count}"], "--ruler-threads", count)
        result[str(count)] = few
    return result


def cores(options: argparse.Namespace, folder: Path) -> dict:
    """On the first few cores only, the ruler as well; on all cores where there are no more."""
    model = large_model(options, folder)
    own = sorted(os.sched_getaffinity(0))
    return {str(count): bench_gpu(options, folder, [model], ["arena,kept", "each,kept"], "--limits", "--cpus",
                                  ",".join(map(str, own[:count])))
            for count in CORE_COUNTS if count <= len(own)}


def small(options: argparse.Namespace, folder: Path) -> dict:
    """Many small tensors, and a few large ones in the same rounds."""
    model = large_model(options, folder)
    many = make_model(folder, "small", 1, 4, "--small", str(options.small_tensors))
    return bench_gpu(options, folder, [many, model], ["arena,kept", "each,kept"])


def cast(options: argparse.Namespace, folder: Path) -> dict:
    """Conversions on the way, each against the plain load of the same file in the same rounds."""
    touch_memory(2)
    narrow = make_model(folder, "model", options.gib, 4)
    wide = make_model(folder, "single", options.gib, 4, "--dtype", "F32")
    return {"f32_to_bf16": bench_gpu(options, folder, [wide], ["arena,kept,0", "arena,kept,0,BF16"]),
            "bf16_to_f32": bench_gpu(options, folder, [narrow], ["arena,kept,0", "arena,kept,0,F32"])}


def peers(options: argparse.Namespace, folder: Path) -> dict:
    model = large_model(options, folder)
    return run_json([sys.executable, HERE / "bench_peers.py", model], folder)


def group(options: argparse.Namespace, folder: Path) -> dict | None:
    """Two GPUs, a process each; nothing where there are fewer."""
    model = large_model(options, folder)
    return run_json([sys.executable, HERE / "bench_group.py", model, "--build", options.build, "--pairs",
                     options.pairs], folder)


def transformers(options: argparse.Namespace, folder: Path) -> dict | None:
    touch_memory(2)
    return run_json([sys.executable, HERE / "bench_transformers.py", folder, "--gib", min(options.gib, 7.5),
                     "--seconds", options.seconds], folder)


SECTIONS = {"gpu-hot": hot, "gpu-threads": threads, "gpu-cores": cores, "gpu-small": small, "gpu-cast": cast,
            "peers": peers, "transformers": transformers, "group": group}
