"""What Transformers will do with each tensor of a checkpoint, found out before it does it: the parameter that a tensor
becomes, the device it goes to, whether it becomes the parameter as it is, and which experts make one parameter.

The names are made by Transformers' own functions, on copies of its converters: some of them change as they rename.
Nothing is read and no memory is taken here.
"""

from __future__ import annotations

import copy
import importlib
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any

from . import _core, _devices, _dtypes


NUMBER = re.compile(r"\.(\d+)\.(?!.*\.\d+\.)")  # the last part of a name that is a number
DIGIT = re.compile(r"\d|\\d")


@dataclass(frozen=True)
class Part:
    """A tensor of the checkpoint, and where in a merged parameter it belongs."""

    index: int
    offset: int = 0  # bytes


@dataclass
class Item:
    """What Transformers is given under one name: a tensor, or a parameter merged of several. Shape and bytes are those
    of the dtype that it is given in; `stored` is that of the checkpoint."""

    name: str
    device: str
    stored: str
    dtype: str
    shape: tuple[int, ...]
    nbytes: int
    parts: list[Part]
    is_merged: bool = False

    def convert(self, dtype: str) -> None:
        """Lets it be given in this dtype, which the load makes on the way."""
        bits, before = _dtypes.BITS[dtype], _dtypes.BITS[self.dtype]
        self.parts = [Part(part.index, part.offset * bits // before) for part in self.parts]
        self.nbytes, self.dtype = self.nbytes * bits // before, dtype


@dataclass
class Plan:
    """Items in the order in which Transformers asks for them.

    final: become parameters as they are given; all of them may exist at once.
    passing: are quantized, cut or cast by Transformers on their way to a parameter, and go.
    direct: of which Transformers decides itself what it wants (tensor parallelism).
    mapped: (name, index) of those that the library does not read.
    used: of merged experts, the converters that Transformers would have used; None without.
    """

    final: list[Item] = field(default_factory=list)
    passing: list[Item] = field(default_factory=list)
    direct: list[Item] = field(default_factory=list)
    mapped: list[tuple[str, int]] = field(default_factory=list)
    used: list[bool] | None = None


@dataclass(frozen=True)
class _Source:
    """A tensor of the checkpoint under its new name; `pattern` is that of the converter that takes it, or None."""

    name: str
    index: int
    pattern: str | None
    dtype: str
    shape: tuple[int, ...]
    nbytes: int


class Planner:
    """Makes the Plan of one call of Transformers' loader. `eager`: CPU targets are read and not mapped."""

    def __init__(self, model: Any, core: _core.Checkpoint, config: Any, eager: bool) -> None:
        self._library: Any = importlib.import_module("transformers.core_model_loading")
        self._accelerate: Any = importlib.import_module("transformers.integrations.accelerate")
        self._torch: Any = importlib.import_module("torch")
        self._model = model
        self._core = core
        self._config = config
        self._eager = eager
        self._is_synchronous = _is_synchronous(self._library, config)
        self._wanted: dict[str, Any] = model.state_dict()
        self._transforms = [copy.copy(transform) for transform in config.weight_mapping or []]
        names = list(config.dtype_plan or ())
        self._own_dtypes = self._library.build_glob_alternation(names)[0] if names else None

    def make(self) -> Plan:
        plan = Plan()
        targets = self._rename(plan)
        devices = self._accelerate.expand_device_map(self._config.device_map, list(targets))
        for target, sources in targets.items():
            self._place(plan, target, sources, self._device(devices[target], sources))
        plan.passing.sort(key=lambda item: self._library.dot_natural_key(item.name))
        if any(item.is_merged for item in (*plan.final, *plan.passing)):
            plan.used = [transform._was_used for transform in self._transforms]
        return plan

    # ------------------------------------------------------------------------------------------------- names

    def _rename(self, plan: Plan) -> dict[str, list[_Source]]:
        """Parameter -> the tensors that it is made of, in Transformers' order. Others are `plan.mapped`."""
        transforms, wanted = self._split(self._transforms), self._wanted
        targets: dict[str, list[_Source]] = {}
        came_often: set[str] = set()  # parameters that one pattern gives to more than once: put into order at the end
        came: set[tuple[str, str | None]] = set()
        for family in self._families():
            shared = self._shared_name(family, transforms)
            for at, (name, index) in enumerate(family):
                target, pattern = shared or self._renamed(name, *transforms)
                if target not in wanted:
                    plan.mapped.append((name, index))
                    continue
                _, dtype, shape, _, _, nbytes = self._core.info(index)
                targets.setdefault(target, []).append(_Source(name, index, pattern, dtype, shape, nbytes))
                if (shared is None or at == 0) and (target, pattern) in came:
                    came_often.add(target)
                came.add((target, pattern))
        for target in came_often:
            targets[target].sort(key=lambda source: self._library.dot_natural_key(source.name))
        return targets

    def _families(self) -> Iterator[list[tuple[str, int]]]:
        """The tensors in Transformers' order. Those whose names differ in the last number only come together, unless
        a transform looks at numbers or at what it renamed before: then each comes alone."""
        names, key = self._core.names(), self._library.dot_natural_key
        families: dict[str, list[tuple[int, str, int]]] = {}
        looks = any(map(self._looks_at_numbers, self._transforms))
        for index, name in enumerate(names):
            number = None if looks else NUMBER.search(name)
            family = f"{name[:number.start()]}.#.{name[number.end():]}" if number else name
            families.setdefault(family, []).append((int(number[1]) if number else 0, name, index))
        for members in families.values():
            members.sort()
        for members in sorted(families.values(), key=lambda members: key(members[0][1])):
            yield [(name, index) for _, name, index in members]

    def _looks_at_numbers(self, transform: Any) -> bool:
        plain = type(transform).rename_source_key is self._library.WeightTransform.rename_source_key
        return not plain or any(DIGIT.search(pattern) for pattern in transform.source_patterns)

    def _shared_name(self, family: list[tuple[str, int]], transforms: Any) -> tuple[str, str | None] | None:
        """What all of a family are renamed to, which a converter puts together."""
        if len(family) < 3:
            return None
        first, second = (self._renamed(name, *transforms) for name, _ in family[:2])
        return first if first == second and first[1] is not None else None

    def _split(self, transforms: Iterable[Any]) -> tuple[list[Any], list[Any]]:
        renamings = [entry for entry in transforms if isinstance(entry, self._library.WeightRenaming)]
        return renamings, [entry for entry in transforms if isinstance(entry, self._library.WeightConverter)]

    def _renamed(self, name: str, renamings: list[Any], converters: list[Any]) -> tuple[str, str | None]:
        rename, prefix, wanted = self._library.rename_source_key, self._model.base_model_prefix, self._wanted
        target, pattern = rename(name, renamings, converters, prefix, wanted)
        if target not in wanted and name in wanted:
            target, pattern = rename(name, [], [], prefix, wanted)
        return target, pattern

    # ------------------------------------------------------------------------------------------------ devices

    def _device(self, device: Any, sources: list[_Source]) -> str:
        converter = self._converter(sources[0].pattern)
        if converter is not None and getattr(converter, "force_cpu", False):
            return "cpu"
        return _devices.name_of(self._torch.device(device))

    def _converter(self, pattern: str | None) -> Any:
        """The one that Transformers would take: of two with a pattern the last."""
        if pattern is None:
            return None
        return {key: entry for entry in self._split(self._transforms)[1] for key in entry.source_patterns}[pattern]

    # ------------------------------------------------------------------------------------------------- placing

    def _place(self, plan: Plan, target: str, sources: list[_Source], device: str) -> None:
        merged = self._merged(target, sources, device)
        if merged is not None:
            (plan.final if self._becomes(target, merged) else plan.passing).append(merged)
        elif device == "cpu" and not self._eager:
            plan.mapped += [(source.name, source.index) for source in sources]
        else:
            for source in sources:
                self._place_alone(plan, target, source, device, len(sources) == 1)

    def _place_alone(self, plan: Plan, target: str, source: _Source, device: str, is_only: bool) -> None:
        part = Part(source.index)
        item = Item(source.name, device, source.dtype, source.dtype, source.shape, source.nbytes, [part])
        if self._is_distributed(target):
            plan.direct.append(item)
        elif is_only and source.pattern is None and self._becomes(target, item):
            plan.final.append(item)
        else:
            plan.passing.append(item)

    def _is_distributed(self, target: str) -> bool:
        return bool(self._library.is_dtensor(self._wanted[target]))

    def _becomes(self, target: str, item: Item) -> bool:
        """Whether Transformers takes the tensor as it is for the parameter, which decides the dtype."""
        wanted = self._wanted[target]
        if self._is_synchronous or (self._own_dtypes is not None and self._own_dtypes.search(target)):
            return False
        if tuple(wanted.shape) != item.shape:
            return False
        dtype = str(_dtypes.name_of(wanted.dtype))
        if dtype != item.stored and (self._config.hf_quantizer is not None or not _dtypes.casts(item.stored, dtype)):
            return False
        item.convert(dtype)
        return True

    # ------------------------------------------------------------------------------------------------- experts

    def _merged(self, target: str, sources: list[_Source], device: str) -> Item | None:
        """The parameter as one item, where each of its tensors is one block of it."""
        converter = self._converter(sources[0].pattern)
        if converter is None or self._config.hf_quantizer is not None or self._is_distributed(target):
            return None
        groups = [[source for source in sources if source.pattern == key] for key in converter.source_patterns]
        dtype = sources[0].dtype
        whole = dtype in _dtypes.TORCH and dtype != "F4" and all(source.dtype == dtype for source in sources)
        if not whole or sum(map(len, groups)) != len(sources) or not all(groups):
            return None
        if len(converter.target_patterns) != 1 or not self._keeps_name(target):
            return None
        laid = self._lay_out(converter.operations, groups)
        if laid is None or laid[0] != tuple(self._wanted[target].shape):
            return None
        nbytes = sum(source.nbytes for source in sources)
        return Item(target, device, dtype, dtype, laid[0], nbytes, laid[1], is_merged=True)

    def _keeps_name(self, target: str) -> bool:
        """Whether Transformers, given the parameter's own name, leaves it as it is."""
        if self._core.find(target) >= 0:
            return False
        renamings, converters = self._split([copy.copy(transform) for transform in self._transforms])
        return self._renamed(target, renamings, converters) == (target, None)

    def _lay_out(
        self, operations: list[Any], groups: list[list[_Source]]
    ) -> tuple[tuple[int, ...], list[Part]] | None:
        """Shape of the parameter and its parts, for the chains of operations that only put tensors together."""
        steps = [self._step(operation) for operation in operations]
        sources = [source for group in groups for source in group]
        shape = sources[0].shape
        if steps == [("concatenate", 0)]:
            if not shape or any(source.shape[1:] != shape[1:] or not source.shape for source in sources):
                return None
            return (sum(source.shape[0] for source in sources), *shape[1:]), _one_behind_the_other(sources)
        if any(source.shape != shape for source in sources):
            return None
        if steps == [("stack", 0)] and len(groups) == 1:
            return (len(sources), *shape), _one_behind_the_other(sources)
        if steps == [("stack", 0), ("concatenate", 0)] and len(groups) > 1:
            return (len(sources), *shape), _one_behind_the_other(sources)
        is_even = all(len(group) == len(groups[0]) for group in groups)
        if steps == [("stack", 0), ("concatenate", 1)] and len(groups) > 1 and shape and is_even:
            in_turn = [source for row in zip(*groups) for source in row]
            return (len(groups[0]), len(groups) * shape[0], *shape[1:]), _one_behind_the_other(in_turn)
        return None

    def _step(self, operation: Any) -> tuple[str, int] | None:
        if type(operation) is self._library.MergeModulelist:
            return "stack", operation.dim
        is_plain = getattr(operation, "num_shards_attribute", None) is None
        if type(operation) is self._library.Concatenate and is_plain:
            return "concatenate", operation.dim
        return None


def _one_behind_the_other(sources: list[_Source]) -> list[Part]:
    parts, offset = [], 0
    for source in sources:
        parts.append(Part(source.index, offset))
        offset += source.nbytes
    return parts


def _is_synchronous(library: Any, config: Any) -> bool:
    """Whether Transformers asks for one parameter at a time, because what it was given before must go first."""
    quantizer = config.hf_quantizer
    on_the_fly = quantizer is not None and not quantizer.pre_quantized
    return on_the_fly or bool(library.is_env_variable_true("HF_DEACTIVATE_ASYNC_LOAD"))


def final_batches(plan: Plan) -> list[list[Item]]:
    """Of each device all that becomes parameters as it is."""
    devices = sorted({item.device for item in plan.final})
    return [[item for item in plan.final if item.device == device] for device in devices]


def passing_batches(plan: Plan, most_bytes: int) -> list[list[Item]]:
    """The others in the order of their use, cut where the device changes or there would be more than `most_bytes`."""
    result: list[list[Item]] = []
    filled = 0
    for item in plan.passing:
        if not result or filled + item.nbytes > most_bytes or result[-1][0].device != item.device:
            result.append([])
            filled = 0
        result[-1].append(item)
        filled += item.nbytes
    return result
