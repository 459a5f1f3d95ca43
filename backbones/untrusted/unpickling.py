"""Pickle → inert values. Only the standard library: this runs in the sandbox, which starts in 0.05 s because torch stays out.

A pickle is a small program whose instructions call whatever its globals name. Here no global becomes what it names: a few
become builders of plain data (tensors, arrays, containers), every other one a Stub that keeps what it is given and does
nothing. So nothing is imported and nothing of the file's choice is called, which is stricter than
`torch.load(weights_only=True)`; that one serves as the tests' oracle wherever both can read.

What a pickle can name it must not change through its BUILD instruction either: builders are bound methods, classes are
frozen, tensors are tuples. Sizes and offsets are judged once the values are final (backbones.untrusted.skeleton).
"""

import _compat_pickle
import pickle
import re
import struct
from collections import OrderedDict
from collections.abc import Callable
from typing import Any, BinaryIO

from backbones.untrusted.inert import (
    ITEMSIZE,
    NUMPY,
    Broken,
    Namespace,
    NumpyArray,
    NumpyDtype,
    Refused,
    Storage,
    Stub,
    Tensor,
    Token,
    View,
    stub_class,
    to_bytes,
)

STORAGES = {"BFloat16": "bfloat16", "Bool": "bool", "Byte": "uint8", "Char": "int8", "ComplexDouble": "complex128"}
STORAGES |= {"ComplexFloat": "complex64", "Double": "float64", "Float": "float32", "Half": "float16", "Int": "int32"}
STORAGES |= {"Long": "int64", "Short": "int16", "Untyped": "uint8", "_Untyped": "uint8"}
STORAGES = {
    f"{module}.{name}Storage": Token(f"torch.{dtype}")
    for module in ("torch", "torch.cuda", "torch.storage")
    for name, dtype in STORAGES.items()
}

HARMLESS = {"torch.Tensor", "torch.nn.parameter.Parameter", "torch.nn.parameter.Buffer", "numpy.ndarray", "builtins.object"}
TYPES = {f"builtins.{kind.__name__}": kind for kind in (bool, int, float, complex, list, tuple, dict, set, frozenset)}
TYPES |= {"collections.OrderedDict": OrderedDict, "collections.Counter": OrderedDict, "argparse.Namespace": Namespace}
TYPES |= STORAGES | {name: Token(name) for name in ITEMSIZE} | {name: stub_class(name) for name in HARMLESS}

BUILDERS = {
    "_codecs.encode": "_latin1",
    "builtins.bytearray": "_latin1",
    "builtins.bytes": "_latin1",
    "collections.defaultdict": "_defaultdict",
    "copyreg._reconstructor": "_reconstructed",
    "numpy.core.multiarray._reconstruct": "_array",
    "numpy.core.multiarray.scalar": "_scalar",
    "numpy.core.numeric._frombuffer": "_array_over",
    "numpy.dtype": "_dtype",
    "torch.Size": "_size",
    "torch._tensor._rebuild_from_type_v2": "_typed",
    "torch._utils._rebuild_device_tensor_from_cpu_tensor": "_first",
    "torch._utils._rebuild_device_tensor_from_numpy": "_first",
    "torch._utils._rebuild_parameter": "_first",
    "torch._utils._rebuild_parameter_with_state": "_first",
    "torch._utils._rebuild_tensor": "_tensor",
    "torch._utils._rebuild_tensor_v2": "_tensor",
    "torch._utils._rebuild_tensor_v3": "_tensor_v3",
    "torch._utils._rebuild_xla_tensor": "_first",
    "torch.device": "_device",
    "torch.jit._pickle.build_boollist": "_first",
    "torch.jit._pickle.build_doublelist": "_first",
    "torch.jit._pickle.build_intlist": "_first",
    "torch.jit._pickle.build_tensorlist": "_first",
    "torch.jit._pickle.restore_type_tag": "_first",
    "torch.serialization._get_layout": "_first",
    "torch.storage._load_from_bytes": "_nested",
    "torch.tensor._rebuild_from_type_v2": "_typed",
}

QUANTISED = "quantised tensors: save the weights as they were before quantisation"
UNSUPPORTED = {
    "torch._utils._rebuild_meta_tensor_no_storage": "meta tensors, which have no values: save the real weights",
    "torch._utils._rebuild_nested_tensor": "nested tensors: save plain ones",
    "torch._utils._rebuild_qtensor": QUANTISED,
    "torch._utils._rebuild_sparse_tensor": "sparse tensors: save them after .to_dense()",
    "torch._utils._rebuild_wrapper_subclass": "tensors of a wrapper class: save plain ones",
}

# Safety does not rest on this list: nothing on or off it is ever called. It tells an attack from a harmless odd object.
ATTACK = re.compile(
    r"(_?pickle|_posixsubprocess|bdb|cProfile|code|codeop|ctypes|ensurepip|imp|importlib|marshal|nt|os|pdb|pip|posix|profile"
    r"|pty|pydoc|requests|runpy|shutil|socket|subprocess|sys|timeit|trace|urllib|webbrowser)\..*"
    r"|builtins\.(__import__|breakpoint|compile|eval|exec|execfile|file|globals|open)"
    r"|numpy\.load|torch\.(hub\.|jit\.|serialization\.)?load"
)


class Reader(pickle.Unpickler):
    """Reads one pickle from `file`, up to where it ends, and adds the globals that became stubs to `stubs`.

    Args:
        storage: finds the storage with a given key and dtype; without it, a pickle that refers to storages is refused.
        nested: reads a torch file held in bytes, which is how a storage looks in a pickle that torch.save did not write.
    """

    def __init__(
        self,
        file: BinaryIO,
        stubs: dict[str, type[Stub]],
        storage: Callable[[str, Token], Storage] | None = None,
        nested: Callable[[bytes], Any] | None = None,
    ) -> None:
        super().__init__(file, encoding="latin1")  # Python 2 pickles the bytes of arrays as strings; latin-1 keeps them all
        self._stubs, self._storage, self._read_nested = stubs, storage, nested

    def load(self) -> Any:
        """
        Raises:
            Refused: the pickle is damaged, hostile or holds what cannot be read.
        """
        try:
            return super().load()
        except (Refused, MemoryError):
            raise
        except Exception as error:  # hostile instructions fail in every way there is
            if isinstance(error, EOFError) or "truncated" in str(error):
                raise Broken("ends too early: download it again") from None
            raise Broken(f"is a broken pickle ({type(error).__name__}: {error}): download it again") from None

    def find_class(self, module: str, name: str) -> Any:
        full = full_name(module, name)
        if full in BUILDERS:
            return getattr(self, BUILDERS[full])
        if full in TYPES:
            return TYPES[full]
        if full in UNSUPPORTED or full.startswith(("torch.QInt", "torch.QUInt")):
            raise Refused(f"holds {UNSUPPORTED.get(full, QUANTISED)}")
        if ATTACK.fullmatch(full):
            raise Refused(f"names {full}, which no checkpoint needs: it attacks whoever loads it (nothing was run); delete it")
        return self._stub(full)

    def persistent_load(self, saved: Any) -> Any:
        match saved:
            case ("storage", Token() as dtype, str(key), _, numel) if self._storage:
                return View(self._storage(key, dtype), dtype, numel)
            case ("storage", Token() as dtype, str(key), _, numel, view) if self._storage:
                _, first, numel = view or (None, 0, numel)
                return View(self._storage(key, dtype), dtype, numel, first)
            case ("module", module, _, _):
                return module
        raise Refused("refers to something outside itself, as torch.save never does: save it again with torch.save")

    def _stub(self, full: str) -> type[Stub]:
        if full not in self._stubs:
            self._stubs[full] = stub_class(full)
        return self._stubs[full]

    # What a pickle may call. The arguments are whatever it likes to pass: wrong ones end as "a broken pickle".

    def _first(self, value: Any, *_: Any) -> Any:
        return value

    def _size(self, sizes: Any) -> tuple:
        return tuple(sizes)

    def _device(self, *parts: Any) -> str:
        return ":".join(str(part) for part in parts if type(part) in (str, int))

    def _latin1(self, text: Any = b"", encoding: str = "latin1") -> bytes:
        if encoding not in ("latin1", "latin-1"):
            raise ValueError("bytes are pickled as latin-1")  # looking up another codec could import a module
        return to_bytes(text)

    def _defaultdict(self, _factory: Any = None, *entries: Any) -> OrderedDict:
        return OrderedDict(*entries)

    def _reconstructed(self, kind: Any, _base: Any, state: Any) -> Any:
        return kind() if state is None else kind(state)

    def _typed(self, rebuild: Any, _kind: Any, args: tuple, _state: Any) -> Any:
        return rebuild(*args)

    def _tensor(
        self, view: View, offset: Any, shape: Any, stride: Any, grad: Any = False, hooks: Any = None, bits: Any = None
    ) -> Tensor:
        return self._tensor_v3(view, offset, shape, stride, grad, hooks, view.dtype, bits)

    def _tensor_v3(
        self, view: View, offset: Any, shape: Any, stride: Any, _grad: Any, _hooks: Any, dtype: Token, bits: Any = None
    ) -> Tensor:
        if type(view) is not View or type(dtype) is not Token:
            raise TypeError("a tensor of no known dtype")
        if bits and any(bits.values()):
            raise Refused("holds lazily conjugated or negated tensors: save them after .resolve_conj().resolve_neg()")
        return Tensor(view, dtype, offset, tuple(shape), tuple(stride))  # copies: the pickle can still append to its lists

    def _nested(self, data: Any) -> Any:
        if self._read_nested is None:
            raise Refused("hides a file within a file: save it again with torch.save")
        return self._read_nested(to_bytes(data))

    def _dtype(self, code: Any, *_: Any) -> NumpyDtype:
        return NumpyDtype(code if type(code) is str else "object")

    def _array(self, *_: Any) -> NumpyArray:
        return NumpyArray()

    def _array_over(self, data: Any, dtype: Any, shape: Any, order: Any) -> NumpyArray:
        return NumpyArray(1, shape, dtype, order == "F", data)

    def _scalar(self, dtype: NumpyDtype, data: Any) -> Any:
        if dtype.code not in NUMPY:
            return self._stub(f"numpy scalar of dtype {dtype.code}")(data)
        numbers = struct.unpack((">" if dtype.order == ">" else "<") + NUMPY[dtype.code][1], to_bytes(data))
        return complex(*numbers) if len(numbers) == 2 else numbers[0]


def full_name(module: str, name: str) -> str:
    """`module.name`, printable, as Python 3 and numpy 1 spell it: `__builtin__` is `builtins`, `numpy._core` is `numpy.core`."""
    module, name = _compat_pickle.NAME_MAPPING.get((module, name), (module, name))
    full = f"{_compat_pickle.IMPORT_MAPPING.get(module, module)}.{name}".replace("numpy._core.", "numpy.core.", 1)
    return full if full.isprintable() else ascii(full)
