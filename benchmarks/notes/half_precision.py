"""Time a matrix product in single precision and in bfloat16.

ONEDNN_MAX_CPU_ISA=AVX512_CORE_BF16 python -m benchmarks.notes.half_precision
"""

import time

import torch

torch.set_num_threads(1)
for kind in (torch.float32, torch.bfloat16):
    a, b = torch.rand(50_000, 392).to(kind), torch.rand(392, 390).to(kind)
    times = []
    for _ in range(5):
        began = time.process_time()
        a @ b
        times.append(time.process_time() - began)
    print(kind, f"{1000 * min(times):.0f} ms")
