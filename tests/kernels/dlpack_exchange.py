# SPDX-FileCopyrightText: the apex authors
# SPDX-License-Identifier: BSD-3-Clause
"""dlpack_exchange.py LIBRARY: tensors go to NumPy and PyTorch and come from them, through DLPack, without a copy.

A value changed on one side is seen on the other, and memory is freed once, by its owner, when the last user of either
side is gone. Ends with 77 (skipped) where neither NumPy nor PyTorch is there.
"""
import ctypes
import gc
import sys
import weakref

lib = ctypes.CDLL(sys.argv[1])
lib.exchange_error.restype = ctypes.c_char_p
lib.exchange_dtype.restype = ctypes.c_char_p
lib.exchange_give.restype = ctypes.c_void_p
lib.exchange_get.restype = ctypes.c_double
for name in ("address", "size", "stride"):
    getattr(lib, "exchange_" + name).restype = ctypes.c_int64
lib.exchange_get.argtypes = [ctypes.c_int, ctypes.c_int64]
lib.exchange_set.argtypes = [ctypes.c_int, ctypes.c_int64, ctypes.c_double]
lib.exchange_take.argtypes = [ctypes.c_void_p, ctypes.c_int]

api = ctypes.pythonapi
api.PyCapsule_New.restype = ctypes.py_object
api.PyCapsule_New.argtypes = [ctypes.c_void_p, ctypes.c_char_p, ctypes.c_void_p]
api.PyCapsule_GetPointer.restype = ctypes.c_void_p
api.PyCapsule_GetPointer.argtypes = [ctypes.py_object, ctypes.c_char_p]
api.PyCapsule_SetName.argtypes = [ctypes.py_object, ctypes.c_char_p]
api.PyCapsule_IsValid.argtypes = [ctypes.py_object, ctypes.c_char_p]

# A capsule keeps the address of its name, so the names must stay.
NAMES = {0: (b"dltensor", b"used_dltensor"), 1: (b"dltensor_versioned", b"used_dltensor_versioned")}
CPU = (1, 0)

failures = 0
checks = 0


def check(right, *what):
    global failures, checks
    checks += 1
    if not right:
        failures += 1
        print("FAILED:", *what)


class Producer:
    """What from_dlpack() of another framework asks, for one of our tensors."""

    def __init__(self, number):
        self.number = number

    def __dlpack_device__(self):
        return CPU

    def __dlpack__(self, stream=None, max_version=None, dl_device=None, copy=None):
        versioned = int(max_version is not None and max_version[0] >= 1 and bool(lib.exchange_versioned()))
        pointer = lib.exchange_give(self.number, versioned)
        if not pointer:
            raise BufferError(lib.exchange_error().decode())
        return api.PyCapsule_New(pointer, NAMES[versioned][0], None)


def take(theirs):
    """One of their tensors as ours: its number, or -1, and then the tensor is still theirs."""
    capsule = None
    if lib.exchange_versioned():
        try:
            capsule = theirs.__dlpack__(max_version=(1, 0))
        except TypeError:  # older than DLPack 1.0
            pass
    if capsule is None:
        capsule = theirs.__dlpack__()
    versioned = int(bool(api.PyCapsule_IsValid(capsule, NAMES[1][0])))
    number = lib.exchange_take(api.PyCapsule_GetPointer(capsule, NAMES[versioned][0]), versioned)
    if number >= 0:
        api.PyCapsule_SetName(capsule, NAMES[versioned][1])
    return number


class NumPy:
    name = "numpy"
    dtypes = ["f64", "f32", "f16", "i64", "i32", "u8", "bool"]
    of = {"f64": "float64", "f32": "float32", "f16": "float16", "i64": "int64", "i32": "int32", "u8": "uint8"}

    def __init__(self):
        import numpy

        self.np = numpy
        self.version = numpy.__version__

    def receive(self, producer):
        return self.np.from_dlpack(producer)

    def make(self, dtype):
        base = self.np.arange(24).reshape(2, 3, 4).astype(self.of[dtype])
        return base, base

    def strided(self, a):
        return a.transpose(2, 0, 1)[1:3]

    def dtype(self, a):
        return str(a.dtype)

    def strides(self, a):
        return [s // a.itemsize for s in a.strides]

    def address(self, a):
        return a.__array_interface__["data"][0]

    def flat(self, a):
        return [float(x) for x in a.ravel()]

    def can_write(self, a):
        return a.flags.writeable

    def put(self, a, value):
        a[0, 1, 2] = value


class Torch(NumPy):
    name = "torch"
    dtypes = ["f64", "f32", "f16", "bf16", "i64", "i32", "u8", "bool"]
    of = dict(NumPy.of, bf16="bfloat16")

    def __init__(self):
        import torch

        super().__init__()
        self.torch = torch
        self.version = torch.__version__

    def receive(self, producer):
        return self.torch.from_dlpack(producer)

    def make(self, dtype):
        base = self.np.zeros(24, "int16" if dtype == "bf16" else self.of[dtype])  # who owns the memory
        t = self.torch.from_numpy(base)
        if dtype == "bf16":
            t = t.view(self.torch.bfloat16)
        t.copy_(self.torch.arange(24))
        return t.view(2, 3, 4), base

    def strided(self, a):
        return a.permute(2, 0, 1)[1:3]

    def dtype(self, a):
        return str(a.dtype).replace("torch.", "")

    def strides(self, a):
        return list(a.stride())

    def address(self, a):
        return a.data_ptr()

    def flat(self, a):
        return [float(x) for x in a.reshape(-1).tolist()]

    def can_write(self, a):
        return True


def ours(number):
    dim = lib.exchange_dim(number)
    shape = [lib.exchange_size(number, d) for d in range(dim)]
    count = 1
    for n in shape:
        count *= n
    return {
        "shape": shape,
        "strides": [lib.exchange_stride(number, d) for d in range(dim)],
        "values": [lib.exchange_get(number, i) for i in range(count)],
    }


def from_us(f, dtype, strided):
    what = (f.name, "receives", dtype, "strided" if strided else "row-major")
    number = lib.exchange_make(dtype.encode(), strided)
    if number < 0:
        raise RuntimeError(lib.exchange_error().decode())
    owners = lib.exchange_owners(number)
    a = f.receive(Producer(number))
    mine = ours(number)
    wanted = f.of.get(dtype, "uint8")
    check(f.dtype(a) == wanted or (dtype == "bool" and f.dtype(a) == "bool"), *what, "as", f.dtype(a))
    check(list(a.shape) == mine["shape"], *what, "shape", a.shape)
    check(f.strides(a) == mine["strides"], *what, "strides", f.strides(a))
    check(f.address(a) == lib.exchange_address(number), *what, "a copy")
    check(f.flat(a) == mine["values"], *what, "values", f.flat(a))
    lib.exchange_set(number, 3, 1 if dtype == "bool" else 99)
    check(f.flat(a) == ours(number)["values"], *what, "our change is not seen")
    if f.can_write(a):
        f.put(a, 1 if dtype == "bool" else 55)
        check(f.flat(a) == ours(number)["values"], *what, "their change is not seen")
    part = a[0]
    check(lib.exchange_owners(number) > owners, *what, "nothing holds the memory")
    del a
    gc.collect()
    check(lib.exchange_owners(number) > owners, *what, "freed under a view")
    del part
    gc.collect()
    check(lib.exchange_owners(number) == owners, *what, "never freed")
    # Our last handle goes first.
    a = f.receive(Producer(number))
    values = ours(number)["values"]
    lib.exchange_drop(number)
    check(f.flat(a) == values, *what, "gone with our handle")


def to_us(f, dtype, strided):
    what = (f.name, "gives", dtype, "strided" if strided else "row-major")
    a, base = f.make(dtype)
    if strided:
        a = f.strided(a)
    freed = []
    weakref.finalize(base, freed.append, 1)
    number = take(a)
    check(number >= 0, *what, lib.exchange_error())
    if number < 0:
        return
    mine = ours(number)
    check(lib.exchange_dtype(number).decode() == dtype, *what, "as", lib.exchange_dtype(number))
    check(mine["shape"] == list(a.shape) and mine["strides"] == f.strides(a), *what, mine)
    check(lib.exchange_address(number) == f.address(a), *what, "a copy")
    check(mine["values"] == f.flat(a), *what, "values", mine["values"])
    lib.exchange_set(number, 3, 99)
    f.put(a, 55)
    check(ours(number)["values"] == f.flat(a) and 99.0 in f.flat(a) and 55.0 in f.flat(a), *what, "changes not seen")
    values = f.flat(a)
    del a, base
    gc.collect()
    check(freed == [] and ours(number)["values"] == values, *what, "freed while we hold it")
    lib.exchange_drop(number)
    gc.collect()
    check(freed == [1], *what, "freed", len(freed), "times")


def refusals(np):
    cases = ((lambda: np.np.arange(6.0)[::-1], "negative stride"), (lambda: np.np.arange(6, dtype="int16"), "16 bits"),
             (lambda: np.np.zeros(3, "complex64"), "code 5"))
    for make, text in cases:
        array = make()
        freed = []
        base = array if array.base is None else array.base
        weakref.finalize(base, freed.append, 1)
        number = take(array)
        check(number == -1 and text in lib.exchange_error().decode(), "should refuse", text, lib.exchange_error())
        del array, base
        gc.collect()
        check(freed == [1], "refused", text, "and freed", len(freed), "times")


def main():
    frameworks = []
    for kind in (NumPy, Torch):
        try:
            frameworks.append(kind())
        except ImportError as error:
            print("without", kind.name + ":", error)
    if not frameworks:
        print("neither NumPy nor PyTorch is installed: skipped")
        return 77
    for f in frameworks:
        before = checks
        for dtype in f.dtypes:
            for strided in (0, 1):
                from_us(f, dtype, strided)
                if dtype != "bool":
                    to_us(f, dtype, strided)
        if f.name == "numpy":
            refusals(f)
        print(f.name, f.version, checks - before, "checks")
    print(failures, "failures")
    return 1 if failures else 0


sys.exit(main())
