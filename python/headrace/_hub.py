"""Where a checkpoint lies: paths, lists of paths, and models of the local Hugging Face cache, offline.

A path that exists wins. Otherwise text like `org/name` is looked up in the hub cache by the cache's own layout
(`models--org--name/refs/REVISION`, `snapshots/COMMIT`); nothing is ever downloaded.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, TypeGuard, Union

from . import errors

PathLike = Union[str, bytes, "os.PathLike[str]", "os.PathLike[bytes]"]
Source = Union[PathLike, Iterable[PathLike]]

_HUB_ID = re.compile(r"[A-Za-z0-9][\w.-]*(/[\w.-]+)?")
_COMMIT = re.compile(r"[0-9a-f]{40}")


def resolve(source: Source, revision: str | None = None) -> list[str]:
    """The paths that `source` names: what the library's open takes.

    Raises FileNotFound, with where it looked, when there is neither such a path nor such a model in the cache.
    """
    if is_path(source):
        return [resolve_one(source, revision)]
    paths = paths_of(source)
    if revision is not None:
        raise errors.make("InvalidArgument", "a revision belongs to a hub id, not to a list of files")
    return paths


def is_path(source: Any) -> TypeGuard[PathLike]:
    """Whether a source is one path or id, and not a list of files."""
    return isinstance(source, (str, bytes, os.PathLike))


def path_of(path: Any) -> str:
    """A path as text. Raises InvalidArgument for what is none."""
    if not is_path(path):
        raise errors.make("InvalidArgument", f"a path is text, bytes or an os.PathLike, not {path!r}")
    text = os.fsdecode(path)
    try:
        os.fsencode(text)
    except UnicodeEncodeError as error:
        raise errors.make("InvalidArgument", f"{text!r} can be no path: {error.reason}") from None
    return text


def paths_of(files: Any) -> list[str]:
    """A list of files as texts. Raises InvalidArgument for what is no list, and for an empty one."""
    if not isinstance(files, Iterable) or isinstance(files, Mapping):
        message = f"what to load is a path, the id of a model, or a list of files, not {files!r}"
        raise errors.make("InvalidArgument", message)
    paths = [path_of(path) for path in files]
    if not paths:
        raise errors.make("InvalidArgument", "the list of files is empty")
    return paths


def resolve_one(path: PathLike, revision: str | None = None) -> str:
    """The path that a path or the id of a model names. Raises as resolve()."""
    text = path_of(path)
    if revision is not None and not isinstance(revision, str):
        raise errors.make("InvalidArgument", f"revision= is a branch, a tag or a commit, not {revision!r}")
    if os.path.lexists(text):
        if revision is not None:
            raise errors.make("InvalidArgument", f"'{text}' is a path; a revision belongs to a hub id")
        return text
    if not _HUB_ID.fullmatch(text) or text.endswith((".safetensors", ".json")):
        raise _not_found(text, f"'{text}': no such file or folder")
    return _snapshot(text, "main" if revision is None else revision)


def cache_folder() -> Path:
    """The hub cache, as HF_HUB_CACHE, HUGGINGFACE_HUB_CACHE, HF_HOME and XDG_CACHE_HOME place it."""
    for name in ("HF_HUB_CACHE", "HUGGINGFACE_HUB_CACHE"):
        if os.environ.get(name):
            return Path(os.environ[name]).expanduser()
    home = os.environ.get("HF_HOME")
    if not home:
        home = os.path.join(os.environ.get("XDG_CACHE_HOME") or "~/.cache", "huggingface")
    return Path(home).expanduser() / "hub"


def _snapshot(hub_id: str, revision: str) -> str:
    cache = cache_folder()
    model = cache / ("models--" + hub_id.replace("/", "--"))
    if not model.is_dir():
        raise _not_found(hub_id, f"'{hub_id}' is neither a path nor a model in the hub cache (looked in {model})")
    commit = _commit_of(model, hub_id, revision)
    folder = model / "snapshots" / commit
    if not folder.is_dir():
        raise _not_found(hub_id, f"'{hub_id}': revision {revision} ({commit}) was not downloaded (looked in {folder})")
    if not any(folder.glob("*.safetensors*")):
        raise _not_found(hub_id, f"'{hub_id}': no .safetensors file was downloaded for {revision} (looked in {folder})")
    return str(folder)


def _commit_of(model: Path, hub_id: str, revision: str) -> str:
    if "\0" in revision or ".." in Path(revision).parts or Path(revision).is_absolute():
        raise errors.make("InvalidArgument", f"'{revision}' is not a revision")
    ref = model / "refs" / revision
    try:
        commit = ref.read_text().strip()
    except (OSError, UnicodeDecodeError):
        commit = revision  # a commit needs no ref
    if commit == revision and not (model / "snapshots" / revision).is_dir():
        known = sorted(str(path.relative_to(model / "refs")) for path in (model / "refs").rglob("*") if path.is_file())
        raise _not_found(hub_id, f"'{hub_id}': no revision '{revision}' in the hub cache (looked for {ref}; "
                                 f"there: {', '.join(known) or 'none'})")
    if commit != revision and not _COMMIT.fullmatch(commit):
        raise errors.make("InvalidArgument", f"'{hub_id}': {ref} does not hold a commit", file=str(ref))
    return commit


def _not_found(path: str, message: str) -> errors.HeadraceError:
    import errno

    error = errors.FileNotFound(message)
    error.file, error.errno = path, errno.ENOENT
    return error
