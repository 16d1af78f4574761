"""The part of torch's interface that a state file uses, over numpy: torch itself takes 3 GB, too much for the extra `test`.

Tests that use it run with torch too if that is installed.
"""

from dataclasses import dataclass, replace

import numpy as np

strided, sparse_coo = "torch.strided", "torch.sparse_coo"


@dataclass(frozen=True)
class dtype:  # noqa: N801  # its name
    name: str
    as_numpy: np.dtype

    @property
    def itemsize(self):
        return self.as_numpy.itemsize

    def __str__(self):
        return f"torch.{self.name}"


uint8 = dtype("uint8", np.dtype("u1"))
bool = dtype("bool", np.dtype("?"))  # noqa: A001  # its name
float32 = dtype("float32", np.dtype("f4"))
bfloat16 = dtype("bfloat16", np.dtype("f2"))


@dataclass(eq=False)
class Tensor:
    data: np.ndarray
    dtype: dtype
    layout: str = strided
    device: str = "cpu"
    is_quantized = is_meta = False

    @property
    def shape(self):
        return self.data.shape

    def __array__(self, *_, **__):
        if self.dtype is bfloat16:
            raise TypeError("Got unsupported ScalarType BFloat16")
        return self.data

    def _same(self):
        return self

    detach = cpu = resolve_conj = resolve_neg = contiguous = _same

    def reshape(self, shape):
        return replace(self, data=self.data.reshape(shape))

    def view(self, wanted):
        return Tensor(self.data.view(wanted.as_numpy), wanted)

    def numpy(self):
        return self.data

    def tolist(self):
        return self.data.tolist()

    def to_sparse(self):
        return replace(self, layout=sparse_coo)


def tensor(values, dtype=None):
    made = np.array(values)
    dtype = dtype or (bool if made.dtype == np.bool_ else float32)
    return Tensor(made.astype(dtype.as_numpy), dtype)


def empty(shape, dtype=float32):
    return Tensor(np.empty(shape, dtype.as_numpy), dtype)


def frombuffer(buffer, dtype):
    return Tensor(np.frombuffer(buffer, dtype.as_numpy), dtype)
