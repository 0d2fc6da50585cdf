"""Which experts a rank needs."""

import re


def should_skip_weight(weight_name, local_expert_ids):
    expert = re.search(r"\.experts\.(\d+)\.", weight_name)
    return local_expert_ids is not None and expert is not None and int(expert[1]) not in local_expert_ids
