"""Model FLOPs utilisation (MFU) of a run, with the peaks that it rests on."""

from __future__ import annotations

import polars as pl

from distprof.contract.merged import MfuBasis, PeakUsed
from distprof.merge.run.run_model import Rank, Run
from distprof.peaks.published import peak


def utilisation(run: Run, flops: pl.DataFrame, step_ns: float | None,
                given: float | None) -> tuple[float | None, MfuBasis]:
    """Mean over ranks of the least time for the model's FLOPs / mean step time.

    The least time is the sum over dtypes of FLOPs / dense peak: with one dtype and equal devices MFU is model FLOPs
    per GPU / (step time x peak).

    Args:
        run: Its ranks recorded their device and whether TF32 is allowed.
        flops: Those of the model, as `OperatorSums` has them.
        step_ns: Mean step of the time pass.
        given: Peak FLOP/s of each rank's device; the table of devices is asked where it is None.

    Returns:
        MFU, None where it is unknown; and what it rests on, or why it is unknown.
    """
    if step_ns is None or flops.is_empty():
        return None, MfuBasis(code="no_step")
    if given is not None:
        least_ns = float(flops["flops"].sum()) / flops["rank"].n_unique() / given * 1e9
        return least_ns / step_ns, MfuBasis(code="given", peaks=(PeakUsed(flops_per_second=given),))
    return _by_table(run, flops, step_ns)


def _by_table(run: Run, flops: pl.DataFrame, step_ns: float) -> tuple[float | None, MfuBasis]:
    ranks = {rank.number: rank for rank in run.ranks}
    least_s, used = 0.0, dict[PeakUsed, None]()
    for row in flops.sort("rank", "dtype", "convolution").iter_rows(named=True):
        rank = ranks[row["rank"]]
        device = rank.device_name
        dtype = _may_be_tf32(rank, row["dtype"], "convolution" if row["convolution"] else "matmul")
        if device is None or dtype is None:
            return None, MfuBasis(code="no_device" if device is None else "no_dtype", rank=rank.number)
        # a device without TF32 does as float32 what is allowed to be TF32
        found = peak(device, dtype) or (peak(device, "float32") if dtype == "tf32" else None)
        if found is None:
            return None, MfuBasis(code="no_peak", rank=rank.number, device=device, dtype=dtype)
        least_s += row["flops"] / found.flops_per_second
        used[PeakUsed(flops_per_second=found.flops_per_second, device=device, dtype=found.dtype, source=found.source,
                      year=found.year)] = None
    mfu = least_s / flops["rank"].n_unique() / (step_ns / 1e9)
    return mfu, MfuBasis(code="published", peaks=tuple(used))


def _may_be_tf32(rank: Rank, dtype: str | None, kind: str) -> str | None:
    return "tf32" if dtype == "float32" and rank.recorded is not None and rank.recorded.tf32.get(kind) else dtype
