"""Which experts a rank of expert parallelism owns, as a filter of tensor names."""

from __future__ import annotations

import re
from collections.abc import Callable

from ... import errors

DEFAULT_EXPERT_PATTERN = re.compile(r"\.experts\.(\d+)\.")


def owned_expert_range(num_experts: int, ep_size: int, ep_rank: int) -> tuple[int, int]:
    """First and last + 1 of a rank's experts: consecutive ones, the first ranks with one more where they do not come
    out even."""
    if ep_size <= 0 or not 0 <= ep_rank < ep_size:
        raise errors.make("InvalidArgument", f"rank {ep_rank} of {ep_size} ranks is none")
    each, more = divmod(num_experts, ep_size)
    first = ep_rank * each + min(ep_rank, more)
    return first, first + each + (ep_rank < more)


def expert_parallel_filter(
    num_experts: int, ep_size: int, ep_rank: int, pattern: re.Pattern[str] = DEFAULT_EXPERT_PATTERN
) -> Callable[[str], bool]:
    """A filter that keeps what is no expert's, and the rank's own experts."""
    owned = range(*owned_expert_range(num_experts, ep_size, ep_rank))

    def keep(name: str) -> bool:
        found = pattern.search(name)
        return found is None or int(found[1]) in owned

    return keep
