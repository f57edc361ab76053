"""Energy of data movement, estimated from published figures; no figure is measured.

    level             pJ             of             source
    DRAM              31.4 per byte  HBM2           O'Connor et al., MICRO 2017: 3.92 pJ per bit
    L2                12.5 per byte  1 MB SRAM      Horowitz, ISSCC 2014: 100 pJ per 64 bits
    shared memory      2.5 per byte  32 KB SRAM     Horowitz, ISSCC 2014: 20 pJ per 64 bits
    registers         1.25 per byte  8 KB SRAM      Horowitz, ISSCC 2014: 10 pJ per 64 bits
    arithmetic        0.75 per FLOP  fp16 mul, add  Horowitz, ISSCC 2014: 1.1 pJ and 0.4 pJ

The DRAM figure covers the memory stack (rows, columns and the link) without the controller. The other figures are for
a 45 nm process at 0.9 V and are not scaled to a newer one. A newer process takes less energy per circuit, but the
wires of an L2 that is many times larger take more. Use the figures to compare two schedules on one device, not to
predict the reading of a power meter.

Example, a stream of 1 GB through DRAM, L2 and registers: 31.4 + 12.5 + 1.25 mJ = 45.1 mJ.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum

from interlace.core.errors import ModelError

OCONNOR = "O'Connor et al., Fine-grained DRAM, MICRO 2017: 3.92 pJ per bit of HBM2, controller not included"
HOROWITZ = "Horowitz, Computing's energy problem, ISSCC 2014, 45 nm, not scaled"


class Level(Enum):
    """Level of the memory hierarchy (in bytes), or arithmetic (in FLOPs)."""

    DRAM = "DRAM"
    L2 = "L2"
    SHARED = "shared memory"
    REGISTERS = "registers"
    ARITHMETIC = "arithmetic"


@dataclass(frozen=True)
class EnergyRate:
    """Energy per byte or FLOP of a level, with its source."""

    picojoules: float
    source: str


PUBLISHED: Mapping[Level, EnergyRate] = {
    Level.DRAM: EnergyRate(8 * 3.92, OCONNOR),
    Level.L2: EnergyRate(100 / 8, f"{HOROWITZ}: 1 MB cache, 100 pJ per 64 bits"),
    Level.SHARED: EnergyRate(20 / 8, f"{HOROWITZ}: 32 KB cache, 20 pJ per 64 bits"),
    Level.REGISTERS: EnergyRate(10 / 8, f"{HOROWITZ}: 8 KB cache, 10 pJ per 64 bits"),
    Level.ARITHMETIC: EnergyRate((1.1 + 0.4) / 2, f"{HOROWITZ}: fp16 multiply 1.1 pJ, add 0.4 pJ"),
}


@dataclass(frozen=True)
class LevelEnergy:
    """Energy of one level.

    Attributes:
        level: memory level, or arithmetic.
        amount: bytes moved, or FLOPs.
        joules: energy of that amount.
        source: publication of the rate.
    """

    level: Level
    amount: int
    joules: float
    source: str


@dataclass(frozen=True)
class EnergyEstimate:
    """Energy of one run by level; ``label`` marks it as an estimate wherever it is printed."""

    parts: tuple[LevelEnergy, ...]
    label: str = "estimate from published figures, not measured"

    @property
    def joules(self) -> float:
        """Total energy of all levels in joules."""
        return sum(part.joules for part in self.parts)


def estimate_energy(amounts: Mapping[Level, int]) -> EnergyEstimate:
    """Estimate the energy of a run from the bytes that pass each level and its FLOPs; absent levels count as zero.

    Raises:
        ModelError: an amount is negative.
    """
    for level, amount in amounts.items():
        if amount < 0:
            raise ModelError(f"{level.value} moves {amount}; use 0 or more")
    return EnergyEstimate(
        tuple(
            LevelEnergy(
                level, amounts[level], amounts[level] * PUBLISHED[level].picojoules * 1e-12, PUBLISHED[level].source
            )
            for level in Level
            if level in amounts
        )
    )
