"""The sections of run.py for checkpoints that are on the drive: with a GPU where there is a device."""
import argparse
import sys
from pathlib import Path

import run_gpu
from runner import HERE, make_model, run_json


def cold_model(options: argparse.Namespace, folder: Path) -> Path:
    """Of layers that are small enough to come close to the size that was asked for."""
    return make_model(folder, "cold", options.gib, 4, "--hidden", "2048")


def bench_cold(options: argparse.Namespace, folder: Path, *more: object) -> dict | None:
    model = cold_model(options, folder)
    command = [options.build / "bench_cold", "--pairs", options.pairs, "--sweep-mib", 512, *more]
    if options.seconds:
        command += ["--seconds", options.seconds]
    if run_gpu.has_device():
        command += ["--gpu", 0]
    return run_json([*command, model], folder)


def cold(options: argparse.Namespace, folder: Path) -> dict | None:
    return bench_cold(options, folder)


def half(options: argparse.Namespace, folder: Path) -> dict | None:
    """Half resident, and all resident by several routes."""
    return bench_cold(options, folder, "--no-cold", "--half", "--hot-checks")


def peers(options: argparse.Namespace, folder: Path) -> dict | None:
    model = cold_model(options, folder)
    return run_json([sys.executable, HERE / "bench_cold_peers.py", model], folder)


def ahead(options: argparse.Namespace, folder: Path) -> dict | None:
    model = cold_model(options, folder)
    return run_json([sys.executable, HERE / "bench_ahead.py", model, "--pairs", options.pairs], folder)


SECTIONS = {"ahead": ahead, "cold": cold, "cold-half": half, "cold-peers": peers}
