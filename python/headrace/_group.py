"""Process groups: ranks of torch.distributed that load together, for `group=`. What a process keeps for each group of
the caller's, and where a load takes part.

The caller's group is asked for its ranks and its store, and is not used otherwise.
"""

from __future__ import annotations

import atexit
import contextlib
import os
import sys
import threading
import weakref
from collections.abc import Iterator
from typing import Any

from . import _options, errors
from ._group_peer import Member, Peer

_members: weakref.WeakKeyDictionary[Any, Member] = weakref.WeakKeyDictionary()
_peers: weakref.WeakSet[Peer] = weakref.WeakSet()
_lock = threading.Lock()


def _member_of(group: Any) -> Member | None:
    """None: alone."""
    torch = sys.modules.get("torch")
    if torch is None or not torch.distributed.is_available() or not torch.distributed.is_initialized():
        raise errors.make("InvalidArgument", "group= needs torch.distributed; call init_process_group() before")
    distributed = torch.distributed
    if group is True:
        group = distributed.group.WORLD
    if group == distributed.GroupMember.NON_GROUP_MEMBER:
        raise errors.make("InvalidArgument", "group= is a group that this process is no member of")
    if not isinstance(group, distributed.ProcessGroup):
        raise errors.make("InvalidArgument", f"group= is a torch.distributed.ProcessGroup or True, not {group!r}")
    if group.size() == 1:
        return None
    with _lock:
        member = _members.get(group)
        if member is None:
            if not _members:
                atexit.register(_at_exit)  # behind what ends loads, so that it comes before
            member = _members[group] = Member(torch, group)
    return member


@contextlib.contextmanager
def attending(group: Any) -> Iterator[Peer | None]:
    """Takes part in a load that is started within, as a new Peer of the caller's group, or the given one; None: alone.
    Where starting fails before the ranks meet, the others are told."""
    peer = group
    if group is None:
        peer = None
    elif not isinstance(group, Peer):
        member = _member_of(group)
        peer = None if member is None else Peer(member)
        if peer is not None:
            _peers.add(peer)
    try:
        yield peer
    except BaseException as error:
        if peer is not None:
            peer.decline(error)
        raise


def ranks_of(group: Any) -> tuple[int, int]:
    """Rank and world of a group, or of a peer."""
    member = group.member if isinstance(group, Peer) else _member_of(group)
    return (0, 1) if member is None else (member.rank, member.world)


def release() -> None:
    """Ends the links that no load uses."""
    for member in list(_members.values()):
        member.drop_links()


def _at_exit() -> None:
    for peer in list(_peers):
        peer.fail(f"{peer.member.name_of(peer.member.rank)} exits")
        peer._thread.join(1.0)
    release()


def _after_fork() -> None:
    global _lock
    _lock = threading.Lock()
    _members.clear()
    _peers.clear()


_options._releases.append(release)
os.register_at_fork(after_in_child=_after_fork)
