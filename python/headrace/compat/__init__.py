"""Stand-ins for other packages: the same names, signatures, results and exceptions, read and written by headrace.

    from headrace.compat import safetensors          # instead of `import safetensors`
    headrace.compat.safetensors.enable()             # or for a whole program, also what it imported before

What a stand-in does not cover goes to the package that it stands for, with one line in the log.
"""

from __future__ import annotations

from . import _aside

__all__ = ["enable_all"]


def enable_all() -> None:
    """Switches on every stand-in whose package is installed."""
    from . import safetensors

    if _aside.is_installed("safetensors"):
        safetensors.enable()
    if _aside.is_installed("fastsafetensors") and _aside.is_installed("torch"):
        from . import fastsafetensors

        fastsafetensors.enable()
