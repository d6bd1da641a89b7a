"""Which models share a device: what they need of its time and memory, checked by a simulation.

Devices that a model fills are its own. What is left of each model is a part of a device; the
largest is placed first, on the first device that has room for it and on which all keep their p99.
"""

import math
from bisect import bisect_left
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from services.cli.planning.device_simulation import Part, Simulated, keeps_p99, simulated
from services.cli.planning.device_use import DeviceUse

Pair = tuple[str, str]
# What is so near to the best is as good: the solver's, and what sharing has to save to be tried.
GAP = 0.005
TRACE = 1e-6


class Hosted(NamedTuple):
    """What a device does for a model: of what it could do for that alone, and with how much."""

    pair: Pair
    part: float
    num_replicas: int


@dataclass(frozen=True, kw_only=True)
class PlacedDevice:
    """Devices that do the same.

    Attributes:
        hosted: models of one generation.
        count: of such devices.
    """

    hosted: tuple[Hosted, ...]
    count: int = 1

    @property
    def load(self) -> float:
        """Of the time that plans let it be asked for."""
        return sum(each.part for each in self.hosted)


Placement = Mapping[str, Sequence[PlacedDevice]]


class Placer:
    """Places models on devices; knows what it has simulated."""

    def __init__(self, uses: Mapping[Pair, DeviceUse], max_load: float) -> None:
        """Take what devices do, and the most of it that they are asked for."""
        self._uses = uses
        self._max_load = max_load
        self._kept: list[Mapping[Pair, float]] = []
        self._missed: list[Mapping[Pair, float]] = []
        self._known: dict[tuple[Hosted, ...], Mapping[Pair, Simulated]] = {}

    def placed(
        self, used: Mapping[Pair, float], rooms: Mapping[str, int]
    ) -> dict[str, list[PlacedDevice]]:
        """Devices by generation.

        Args:
            used: devices that each model keeps busy on each generation.
            rooms: devices that there are; models share them only where these are not enough.
        """
        return {generation: self._on(generation, used, room) for generation, room in rooms.items()}

    def memory(self, device: PlacedDevice) -> float:
        """Of a GPU's memory, that the replicas on it are given."""
        return sum(each.num_replicas * self._uses[each.pair].share for each in device.hosted)

    def simulated(self, device: PlacedDevice) -> Mapping[Pair, Simulated]:
        """What each of its models does."""
        if (hosted := device.hosted) not in self._known:
            found = simulated(self._parts(hosted)) if self._is_gpu(device) else self._apart(device)
            pairs = [each.pair for each in hosted]
            self._known[hosted] = dict(zip(pairs, found, strict=True))
        return self._known[hosted]

    def _apart(self, device: PlacedDevice) -> list[Simulated]:
        """Replicas on a CPU have threads of their own: each as if all of the load were its own."""
        load = device.load * self._max_load
        alone = [self._uses[each.pair] for each in device.hosted]
        return [simulated([Part(use.queue, load * use.capacity)])[0] for use in alone]

    def _on(self, generation: str, used: Mapping[Pair, float], room: int) -> list[PlacedDevice]:
        filled = []
        rests = []
        for pair, busy in used.items():
            if pair[1] != generation:
                continue
            wanted = busy / self._max_load
            count = int(wanted + TRACE)
            if count:
                filled.append(PlacedDevice(hosted=(self._hosted(pair, 1.0),), count=count))
            if wanted - count > TRACE:
                rests.append(self._hosted(pair, wanted - count))
        num_apart = sum(each.count for each in filled) + len(rests)
        if num_apart <= (1 + GAP) * room:
            return [*filled, *(PlacedDevice(hosted=(each,)) for each in rests)]
        return filled + self._packed(sorted(rests, key=lambda each: -each.part))

    def _packed(self, rests: Sequence[Hosted]) -> list[PlacedDevice]:
        """The first device with room for each; what makes others late is placed anew."""
        devices: list[list[Hosted]] = []
        for rest in rests:
            having = (each for each in devices if self._has_room((*each, rest)))
            if (device := next(having, None)) is None:
                devices.append([rest])
            else:
                device.append(rest)
        late = []
        for device in devices:
            num = self._num_kept(device)
            late += device[num:]
            del device[num:]
        placed = [PlacedDevice(hosted=tuple(each)) for each in devices]
        return placed + self._packed(late) if late else placed

    def _has_room(self, hosted: Sequence[Hosted]) -> bool:
        device = PlacedDevice(hosted=tuple(hosted))
        return max(device.load, self.memory(device)) <= 1 + TRACE

    def _num_kept(self, hosted: Sequence[Hosted]) -> int:
        """How many of the first of them keep their p99 together; one does alone."""
        if len(hosted) == 1 or self._keeps(hosted):
            return len(hosted)
        nums = range(2, len(hosted))
        return 1 + bisect_left(nums, True, key=lambda num: not self._keeps(hosted[:num]))

    def _keeps(self, hosted: Sequence[Hosted]) -> bool:
        """Whether each model on it keeps its p99; as little or as much was seen often."""
        found = {each.pair: each.part for each in hosted}
        is_cpu = not self._uses[hosted[0].pair].memory
        if is_cpu or any(_is_within(found, kept) for kept in self._kept):
            return True
        if any(_is_within(missed, found) for missed in self._missed):
            return False
        keeps = keeps_p99(self._parts(hosted))
        (self._kept if keeps else self._missed).append(found)
        return keeps

    def _parts(self, hosted: Sequence[Hosted]) -> list[Part]:
        return [
            Part(use.queue, each.part * self._max_load * use.capacity, each.num_replicas)
            for each in hosted
            for use in [self._uses[each.pair]]
        ]

    def _hosted(self, pair: Pair, part: float) -> Hosted:
        return Hosted(pair, part, math.ceil(part * self._uses[pair].num_replicas - TRACE))

    def _is_gpu(self, device: PlacedDevice) -> bool:
        return self._uses[device.hosted[0].pair].memory is not None


def _is_within(less: Mapping[Pair, float], more: Mapping[Pair, float]) -> bool:
    return all(part <= more.get(pair, 0.0) + TRACE for pair, part in less.items())
