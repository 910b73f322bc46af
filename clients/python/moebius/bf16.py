# SPDX-License-Identifier: Apache-2.0
"""bf16 rows in NumPy, which has no such type: their bits as uint16."""
from __future__ import annotations

import numpy as np
import numpy.typing as npt


def to_bf16(values: npt.ArrayLike) -> npt.NDArray[np.uint16]:
    """The bits of the nearest bf16 of each value, ties to even, as the services round.

    Values beyond the largest finite bf16 become infinities; a NaN stays a NaN. What is not float32
    is converted to it first.
    """
    bits = np.ascontiguousarray(values, dtype=np.float32).view(np.uint32)
    # Half of the last place that stays, less one where that place is even.
    rounded = (bits + (((bits >> 16) & 1) + 0x7FFF)) >> 16
    is_nan = (bits & 0x7FFFFFFF) > 0x7F800000
    return np.where(is_nan, (bits >> 16) | 0x0040, rounded).astype(np.uint16)


def from_bf16(bits: npt.NDArray[np.uint16]) -> npt.NDArray[np.float32]:
    """The values of bf16 bits, exactly. TypeError for anything but uint16."""
    if bits.dtype != np.uint16:
        raise TypeError(f"bf16 bits are uint16, not {bits.dtype}")
    return (bits.astype(np.uint32) << 16).view(np.float32)
