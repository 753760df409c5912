"""What GPUs' data sheets promise, to measure a utilisation against."""

import re

# Dense bf16 in TFLOP/s. The vendors' data sheets print most of them "with sparsity", which is twice as much. NVIDIA: HGX B200
# and B300, GB200 and GB300 NVL72, H200, H100 (SXM, PCIe, NVL), GH200, H20, A100, A30, A10, L40S, L40, L4, RTX 6000 Ada; the white
# papers of Ada and Blackwell for RTX (sums in fp32). A10G: AWS G5. AMD: MI300X, MI325X. The first in a device's name wins.
_BF16_PEAKS = {
    "GB300": 2500, "GB200": 2500, "B300": 2250, "B200": 2250, "GH200": 989, "H200 NVL": 835, "H200": 989, "H100 PCIe": 756,
    "H100 NVL": 835, "H100": 989, "H800": 989, "H20": 148, "A100": 312, "A800": 312, "A30": 165, "A10G": 70, "A10": 125,
    "L40S": 362, "L40": 181, "L4": 121, "RTX 6000 Ada": 364, "RTX 5090": 209, "RTX 4090": 165, "MI325X": 1307, "MI300X": 1307,
}  # fmt: skip


def bf16_peak(name: str) -> float | None:
    """Dense bf16 FLOP/s by the data sheet of a GPU, given the name its driver tells; None for one that is not known."""
    known = (1e12 * tflops for part, tflops in _BF16_PEAKS.items() if re.search(rf"\b{part}\b", name))
    return next(known, None)
